// One thread writes messages into a buffer, another reads them; the words that both share are all that orders them.
#include "exchange/shared_words.hpp"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

int main() {
    constexpr std::int64_t messages = 20000;
    constexpr std::size_t size = 64;
    std::vector<std::int64_t> data(size);
    alignas(64) std::int64_t published = 0;
    alignas(64) std::int64_t taken = 0;

    std::thread writer([&] {
        for (std::int64_t m = 1; m <= messages; ++m) {
            while (headrace::read_word(&taken) != m - 1) std::this_thread::yield();
            for (std::size_t i = 0; i < size; ++i) data[i] = m * 1000 + static_cast<std::int64_t>(i);
            headrace::put_word(&published, m);
        }
    });
    for (std::int64_t m = 1; m <= messages; ++m) {
        while (headrace::read_word(&published) != m) std::this_thread::yield();
        for (std::size_t i = 0; i < size; ++i) {
            if (data[i] != m * 1000 + static_cast<std::int64_t>(i)) return EXIT_FAILURE;
        }
        headrace::put_word(&taken, m);
    }
    writer.join();
    std::puts("ok");
}
