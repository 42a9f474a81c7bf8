// Functions that are compiled for several vector widths; the loader of the library picks one for the machine.
//
// Lanes are columns, sums keep their order and nothing is contracted (-ffp-contract=off), so all give the same bits.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEADRACE_VECTOR_CLONES  // the choice runs before the sanitizer is ready
#elif defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define HEADRACE_VECTOR_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define HEADRACE_VECTOR_CLONES
#endif

// For what such a function calls: only inlined code is compiled for its vector width.
#define HEADRACE_INLINE __attribute__((always_inline)) inline

// In a loop whose inner loop is to become vectors: GCC may otherwise run the outer loop two by two within the inner one
// (-floop-unroll-and-jam, part of -O3), and then finds no vectors any more. Costs nothing.
#if defined(__GNUC__)
#define HEADRACE_ONE_BY_ONE __asm__ volatile("");
#else
#define HEADRACE_ONE_BY_ONE
#endif
