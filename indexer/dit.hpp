// The index: shards under their locks, batches in order, tickets of provisional batches, a consistent cut.
//
// Locks, always taken in this order: life (engine) -> order -> cut -> tickets | one shard.
//   order  held by insert() and undo_after(): batches one after the other
//   cut    held by commit(), undo_after() and a snapshot: what is committed does not change under a snapshot
#pragma once

#include "engine.hpp"
#include "shard.hpp"

namespace headrace {

struct Stats {
    std::uint64_t rows = 0, provisional = 0, capacity = 0, nbytes = 0, scratch_nbytes = 0;
    std::uint64_t keys = 0, probe_lines = 0, longest_probe = 0, growths = 0, fullest_shard = 0;
    double longest_call_ms = 0, lock_wait_ms = 0;
};

// Committed rows and chunks, shard by shard: shard s has chunk_counts[s] chunks, in the order in which it took them.
struct CutShape {
    std::uint64_t rows = 0;
    std::vector<std::int64_t> chunk_counts;
    std::vector<std::uint32_t> chunk_groups, chunk_rows;
};

class Dit {
  public:
    Dit(std::vector<TableInfo> tables, std::size_t num_groups, std::uint32_t num_shards, unsigned num_threads,
        std::uint32_t owner_rank, std::uint64_t multiplier)
        : engine_(std::move(tables), num_groups, num_shards, num_threads, multiplier),
          rank_bits_(static_cast<std::uint64_t>(owner_rank) << kPlaceBits) {
        for (std::uint32_t s = 0; s < num_shards; ++s) {
            shards_.push_back(std::make_unique<LockedShard>(s, num_shards, num_groups, arena_));
        }
    }

    Engine& engine() { return engine_; }

    // --- batches

    // Ticket of the batch, whose outputs are set. On bad_alloc or overflow_error the batch has left no trace.
    std::int64_t insert(Batch& batch) {
        const auto open = engine_.enter();
        const std::lock_guard<std::mutex> order(order_mutex_);
        const auto begin = Clock::now();
        const std::int64_t ticket = next_ticket_;
        reserve_ticket();
        std::atomic<std::size_t> new_rows{0};
        try {
            engine_.pool().run(engine_.num_lanes(), [&](std::size_t lane) { new_rows += insert(batch, lane, ticket); });
        } catch (...) {
            undo_shards(ticket - 1);
            throw;
        }
        grow_crowded(new_rows);
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        pending_.push_back(ticket);
        ++next_ticket_;
        longest_call_ms_ = std::max(longest_call_ms_, batch.busy_ms + ms_since(begin));
        return ticket;
    }

    void lookup(Batch& batch) {
        const auto open = engine_.enter();
        engine_.pool().run(engine_.num_lanes(), [&](std::size_t lane) {
            const LaneLock lock(*this, lane);
            ProbeCounts counts;
            each_key(batch, lane, [&](const Batch::Cursor& key) {
                const GroupOut& out = batch.group(key.group());
                const std::uint64_t at = shard(key).find_committed({key.order(), key.key()}, counts);
                out.locations[key.row()] = at == kAbsent ? kAbsent : rank_bits_ | at;
                out.is_new[key.row()] = 0;
            });
        });
    }

    // --- tickets

    void commit(std::int64_t ticket) {
        const auto open = engine_.enter();
        const std::lock_guard<std::mutex> cut(cut_mutex_);
        check_ticket(ticket, false);
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = this->lock(s);
            shards_[s]->shard.commit(ticket);
        }
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        pending_.erase(pending_.begin(), std::upper_bound(pending_.begin(), pending_.end(), ticket));
        last_committed_ = ticket;
    }

    // `none`: all that is uncommitted.
    void undo_after(std::int64_t ticket, bool none) {
        const auto open = engine_.enter();
        const std::lock_guard<std::mutex> order(order_mutex_);
        const std::lock_guard<std::mutex> cut(cut_mutex_);
        if (none) ticket = last_committed_;
        if (!none) check_ticket(ticket, true);
        undo_shards(ticket);
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        pending_.erase(std::upper_bound(pending_.begin(), pending_.end(), ticket), pending_.end());
    }

    // --- reading

    std::uint64_t open_tickets() {
        const auto open = engine_.enter();
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        return pending_.size();
    }

    std::uint64_t committed_rows() {
        const auto open = engine_.enter();
        return sum([](const Shard& shard) { return shard.rows() - shard.provisional(); });
    }

    std::uint64_t provisional_rows() {
        const auto open = engine_.enter();
        return sum([](const Shard& shard) { return shard.provisional(); });
    }

    std::uint64_t nbytes() {
        const auto open = engine_.enter();
        return arena_.nbytes() + sum([](const Shard& shard) { return shard.nbytes(); });
    }

    // -1 if no row of the chunk is in use.
    std::int64_t chunk_group(std::uint64_t chunk) {
        const auto open = engine_.enter();
        const std::size_t s = chunk % shards_.size(), k = chunk / shards_.size();
        const auto lock = this->lock(s);
        const Chunks& chunks = shards_[s]->shard.chunks();
        return k < chunks.size() ? static_cast<std::int64_t>(chunks[k].group) : -1;
    }

    Stats stats() {
        const auto open = engine_.enter();
        Stats out;
        ProbeCounts probes;
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = this->lock(s);
            const Shard& shard = shards_[s]->shard;
            probes.add(shards_[s]->probes);
            out.rows += shard.rows() - shard.provisional();
            out.provisional += shard.provisional();
            out.capacity += shard.capacity();
            out.nbytes += shard.nbytes();
            out.growths += shard.growths();
            out.fullest_shard = std::max<std::uint64_t>(out.fullest_shard, shard.rows());
            out.lock_wait_ms += shards_[s]->wait_ms;
        }
        out.nbytes += arena_.nbytes();
        out.keys = probes.keys;
        out.probe_lines = probes.lines;
        out.longest_probe = probes.longest;
        out.scratch_nbytes = engine_.scratch_nbytes();
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        out.longest_call_ms = longest_call_ms_;
        return out;
    }

    // --- snapshot and restore

    // Nothing is committed or undone while it is held; batches go on.
    struct Cut {
        std::shared_lock<std::shared_mutex> open;
        std::unique_lock<std::mutex> cut;
    };

    std::unique_ptr<Cut> open_cut() {
        auto cut = std::make_unique<Cut>();
        cut->open = engine_.enter();
        cut->cut = std::unique_lock<std::mutex>(cut_mutex_);
        return cut;
    }

    CutShape cut_shape(const Cut&) {
        CutShape shape;
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = this->lock(s);
            const Chunks& chunks = shards_[s]->shard.chunks();
            std::int64_t count = 0;
            for (; static_cast<std::size_t>(count) < chunks.size(); ++count) {
                const Chunk& chunk = chunks[static_cast<std::size_t>(count)];
                if (chunk.committed == 0) break;  // later chunks hold later rows
                shape.chunk_groups.push_back(chunk.group);
                shape.chunk_rows.push_back(chunk.committed);
                shape.rows += chunk.committed;
            }
            shape.chunk_counts.push_back(count);
        }
        return shape;
    }

    // The committed rows in the order of their locations: each one's position is known from its chunk.
    void cut_rows(const Cut&, const CutShape& shape, std::uint32_t* uids, std::uint8_t* missing, std::uint64_t* ids,
                  std::uint64_t* locations) {
        const std::vector<std::vector<std::uint64_t>> starts = chunk_starts(shape);
        const std::uint64_t inverse_multiplier = inverse(engine_.multiplier());
        engine_.pool().run(shards_.size(), [&](std::size_t s) {
            const auto lock = this->lock(s);
            const Chunks& chunks = shards_[s]->shard.chunks();
            shards_[s]->shard.entries().each([&](const Entry& entry) {
                if (!chunks.committed(entry.place())) return;
                const std::uint64_t row = starts[s][chunks.k_of(entry.place())] + place_offset(entry.place());
                const TableInfo& table = engine_.tables()[entry.table()];
                uids[row] = table.uid;
                missing[row] = entry.missing();
                ids[row] =
                    entry.missing() ? 0 : unmix64_seeded(table.seed, unpermuted(~entry.order, inverse_multiplier));
                locations[row] = rank_bits_ | entry.place();
            });
        });
    }

    // Fills an empty index. The shape and the places are checked by the caller; here that each key
    // belongs to the shard of its place and that none comes twice. Nothing changes if it throws.
    void restore(const CutShape& shape, const std::uint32_t* tables, const std::uint8_t* missing,
                 const std::uint64_t* ids, const std::uint64_t* locations) {
        const auto alone = engine_.enter_alone();
        if (!pending_.empty() || sum([](const Shard& shard) { return shard.rows(); }) != 0) {
            throw std::runtime_error("restore needs an empty index: no rows, no uncommitted tickets");
        }
        const auto num_shards = static_cast<std::uint32_t>(shards_.size());
        std::vector<std::unique_ptr<LockedShard>> fresh;
        std::size_t c = 0;
        for (std::uint32_t s = 0; s < num_shards; ++s) {
            fresh.push_back(std::make_unique<LockedShard>(s, num_shards, engine_.num_groups(), arena_));
            std::size_t rows = 0;
            for (std::int64_t left = shape.chunk_counts[s]; left > 0; --left, ++c) {
                fresh[s]->shard.restore_chunk(shape.chunk_groups[c], shape.chunk_rows[c]);
                rows += shape.chunk_rows[c];
            }
            fresh[s]->shard.reserve(rows);
        }
        const int shift = shard_shift();
        for (std::uint64_t row = 0; row < shape.rows; ++row) {
            const TableInfo& table = engine_.tables()[tables[row]];
            const std::uint64_t hash = missing[row] ? table.missing_hash : mix64_seeded(table.seed, ids[row]);
            const std::uint64_t place = locations[row] & kPlaceMask;
            const std::uint32_t s = static_cast<std::uint32_t>(place >> kOffsetBits) % num_shards;
            if (shard_bits(hash) >> shift != s) {
                throw std::invalid_argument("snapshot row " + std::to_string(row) + " lies in shard " +
                                            std::to_string(s) + ", where its key does not belong");
            }
            const Probe key{~permuted(hash, engine_.multiplier()), key_bits(tables[row], missing[row])};
            if (!fresh[s]->shard.put(key, place)) {
                throw std::invalid_argument("snapshot row " + std::to_string(row) + " repeats the key of another row");
            }
        }
        shards_.swap(fresh);
    }

    // Frees the rows. Later calls throw; a second close() does nothing.
    void close() {
        engine_.close([this] { shards_.clear(); });
    }

  private:
    struct LockedShard {
        LockedShard(std::uint32_t number, std::uint32_t num_shards, std::size_t num_groups, PageArena& arena)
            : shard(number, num_shards, num_groups, arena) {}
        std::mutex mutex;
        Shard shard;
        ProbeCounts probes;
        double wait_ms = 0;
    };

    // The shards of a lane, locked one after the other in rising order, as everybody does who locks more than one.
    class LaneLock {
      public:
        LaneLock(Dit& dit, std::size_t lane)
            : dit_(dit), first_(lane * dit.per_lane()), last_(first_ + dit.per_lane()) {
            for (std::size_t s = first_; s < last_; ++s) dit_.lock(s).release();
        }
        LaneLock(const LaneLock&) = delete;
        LaneLock& operator=(const LaneLock&) = delete;
        ~LaneLock() {
            for (std::size_t s = first_; s < last_; ++s) dit_.shards_[s]->mutex.unlock();
        }

      private:
        Dit& dit_;
        const std::size_t first_, last_;
    };

    static constexpr int kAhead = 16;  // keys whose line is being fetched while one is compared
    static constexpr int kNext = 8;    // keys whose next line is, where the run goes on

    std::size_t per_lane() const { return shards_.size() / engine_.num_lanes(); }
    Shard& shard(const Batch::Cursor& key) { return shards_[key.shard()]->shard; }

    template <class OnKey>
    void each_key(const Batch& batch, std::size_t lane, OnKey&& on_key) {
        Batch::Cursor first(batch, lane), next(batch, lane), key(batch, lane);
        for (int i = 0; i < kAhead; ++i) fetch_line(first);
        for (int i = 0; i < kNext; ++i) fetch_next_line(next);
        while (key.next()) {
            fetch_line(first);
            fetch_next_line(next);
            on_key(key);
        }
    }

    void fetch_line(Batch::Cursor& key) {
        if (key.next()) shard(key).prefetch(key.order());
    }

    void fetch_next_line(Batch::Cursor& key) {
        if (key.next()) shard(key).prefetch_next(key.order());
    }

    // Rows that are new.
    std::size_t insert(Batch& batch, std::size_t lane, std::int64_t ticket) {
        const LaneLock lock(*this, lane);
        ProbeCounts counts;
        std::size_t new_rows = 0;
        each_key(batch, lane, [&](const Batch::Cursor& key) {
            const GroupOut& out = batch.group(key.group());
            bool is_new;
            const std::uint64_t at =
                shard(key).find_or_add({key.order(), key.key()}, key.group(), ticket, counts, is_new);
            out.locations[key.row()] = rank_bits_ | at;
            out.is_new[key.row()] = is_new;
            new_rows += is_new;
        });
        shards_[lane * per_lane()]->probes.add(counts);
        return new_rows;
    }

    // Shards grow between batches, the fullest first, so that hardly one must in the middle: one a batch, or as many as
    // the batch's new rows have earned. Which ones follows from the rows alone.
    void grow_crowded(std::size_t new_rows) {
        std::size_t moved = 0;
        while (moved == 0 || moved < 4 * new_rows) {
            std::size_t fullest = shards_.size();
            double most = 0;
            for (std::size_t s = 0; s < shards_.size(); ++s) {
                const Shard& shard = shards_[s]->shard;  // only who holds the order changes what is read here
                const double load = static_cast<double>(shard.rows()) / static_cast<double>(shard.capacity());
                if (shard.crowded() && load > most) {
                    most = load;
                    fullest = s;
                }
            }
            if (fullest == shards_.size()) return;
            const auto lock = this->lock(fullest);
            try {
                shards_[fullest]->shard.grow();
            } catch (const std::bad_alloc&) {
                return;  // there is time: a shard that has no room left says so itself
            }
            moved += shards_[fullest]->shard.rows();
        }
    }

    std::unique_lock<std::mutex> lock(std::size_t s) {
        LockedShard& shard = *shards_[s];
        std::unique_lock<std::mutex> lock(shard.mutex, std::try_to_lock);
        if (!lock.owns_lock()) {
            const auto begin = Clock::now();
            lock.lock();
            shard.wait_ms += ms_since(begin);
        }
        return lock;
    }

    template <class Of>
    std::uint64_t sum(Of&& of) {
        std::uint64_t total = 0;
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = this->lock(s);
            total += of(shards_[s]->shard);
        }
        return total;
    }

    void undo_shards(std::int64_t ticket) {
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = this->lock(s);
            shards_[s]->shard.undo_after(ticket);
        }
    }

    void reserve_ticket() {
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        if (pending_.size() == pending_.capacity()) pending_.reserve(pending_.size() * 2 + 16);
    }

    void check_ticket(std::int64_t ticket, bool or_last_committed) {
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        if (std::binary_search(pending_.begin(), pending_.end(), ticket)) return;
        if (ticket <= last_committed_ && ticket >= 0) {
            if (or_last_committed && ticket == last_committed_) return;
            throw std::invalid_argument("ticket " + std::to_string(ticket) +
                                        " is no longer open; committed last: " + std::to_string(last_committed_));
        }
        throw std::invalid_argument(
            "unknown ticket " + std::to_string(ticket) + ": " +
            (ticket >= 0 && ticket < next_ticket_ ? "it was undone" : "this index never gave it out"));
    }

    int shard_shift() const {
        int shift = 0;
        while ((shards_.size() << shift) < kMaxShards) ++shift;
        return shift;
    }

    // starts[s][k]: committed rows in chunks of lower numbers; numbers rise with k, then with s.
    std::vector<std::vector<std::uint64_t>> chunk_starts(const CutShape& shape) const {
        std::vector<std::vector<std::uint64_t>> starts(shards_.size());
        std::vector<std::size_t> first(shards_.size());
        std::size_t c = 0, most = 0;
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto count = static_cast<std::size_t>(shape.chunk_counts[s]);
            first[s] = c;
            c += count;
            most = std::max(most, count);
            starts[s].resize(count);
        }
        std::uint64_t start = 0;
        for (std::size_t k = 0; k < most; ++k) {
            for (std::size_t s = 0; s < shards_.size(); ++s) {
                if (k >= starts[s].size()) continue;
                starts[s][k] = start;
                start += shape.chunk_rows[first[s] + k];
            }
        }
        return starts;
    }

    Engine engine_;
    const std::uint64_t rank_bits_;
    PageArena arena_;
    std::vector<std::unique_ptr<LockedShard>> shards_;
    std::mutex order_mutex_, cut_mutex_, ticket_mutex_;
    std::vector<std::int64_t> pending_;  // uncommitted tickets, rising
    std::int64_t next_ticket_ = 0, last_committed_ = -1;
    double longest_call_ms_ = 0;
};

}  // namespace headrace
