// Memory of batches' results, used again by later ones: fresh memory costs a page fault every 4 KiB, a tenth of the
// time of a batch.
#pragma once

#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

namespace headrace {

struct Block {
    void* memory = nullptr;
    std::size_t capacity = 0;
};

// Thread-safe. Keeps a few blocks that were given back, and none that is far too large for what is asked for.
class BlockPool {
  public:
    BlockPool() { free_.reserve(kMost); }
    BlockPool(const BlockPool&) = delete;
    BlockPool& operator=(const BlockPool&) = delete;
    ~BlockPool() {
        for (const Block& block : free_) drop(block);
    }

    // Of at least `bytes`, aligned to cache lines, not zeroed. May throw bad_alloc.
    Block take(std::size_t bytes) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            for (std::size_t i = free_.size(); i-- > 0;) {
                const Block block = free_[i];
                if (block.capacity < bytes || block.capacity / 4 > bytes) continue;
                free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
                return block;
            }
        }
        const std::size_t capacity = bytes + bytes / 8 + 64;
        return {::operator new(capacity, kAlignment), capacity};
    }

    void give_back(const Block& block) noexcept {
        Block dropped = block;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (free_.size() == kMost) {  // the oldest goes: what is asked for may have grown
                dropped = free_.front();
                free_.erase(free_.begin());
            } else {
                dropped.memory = nullptr;
            }
            free_.push_back(block);
        }
        if (dropped.memory != nullptr) drop(dropped);
    }

  private:
    static constexpr std::size_t kMost = 8;
    static constexpr std::align_val_t kAlignment{64};

    static void drop(const Block& block) noexcept { ::operator delete(block.memory, kAlignment); }

    std::mutex mutex_;
    std::vector<Block> free_;
};

}  // namespace headrace
