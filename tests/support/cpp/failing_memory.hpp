// Memory that runs out when a test says so: for a program of one source file.
#pragma once

#include <cstdlib>
#include <new>

static thread_local long allocations_left = -1;  // -1: never fails

static bool runs_out() {
    if (allocations_left == 0) return true;
    if (allocations_left > 0) --allocations_left;
    return false;
}

static void* allocate(std::size_t size, std::size_t alignment) {
    if (runs_out()) throw std::bad_alloc();
    void* memory =
        std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment + (size == 0) * alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

[[gnu::noinline]] void* operator new(std::size_t size) { return allocate(size, 16); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
    return allocate(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
