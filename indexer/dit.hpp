// The index: shards under their locks, batches in order, tickets of provisional batches, a consistent cut.
//
// Locks, always in this order: life (engine) -> stay -> order -> cut -> tickets | shards, in rising order -> counts,
// arena.
//   order  held, shared, by insert(), whose batches follow each other through the lanes (batch_order.hpp), and by
//          undo_after() and remove() alone
//   cut    held by commit() and undo_after(), and while a cut is taken: it sees each ticket in every shard or in none
//   stay   held, shared, as long as a cut lives, and by remove(): a row of a cut stays
#pragma once

#include <optional>

#include "batch_order.hpp"
#include "engine.hpp"
#include "flights.hpp"
#include "restore.hpp"
#include "rows_out.hpp"
#include "use_counts.hpp"

namespace headrace {

struct Stats {
    std::uint64_t rows = 0, provisional = 0, free_places = 0, capacity = 0, nbytes = 0, counts_nbytes = 0;
    std::uint64_t scratch_nbytes = 0;
    std::uint64_t keys = 0, probe_lines = 0, longest_probe = 0, growths = 0, fullest_shard = 0;
    double longest_call_ms = 0, lock_wait_ms = 0;
};

class Dit {
  public:
    Dit(std::vector<TableInfo> tables, std::size_t num_groups, std::uint32_t num_shards, unsigned num_threads,
        std::uint32_t owner_rank, std::uint64_t multiplier, double half_life)
        : engine_(std::move(tables), num_groups, num_shards, num_threads, multiplier),
          rank_bits_(static_cast<std::uint64_t>(owner_rank) << kPlaceBits),
          counts_(half_life, num_shards),
          shards_(num_shards, num_groups, arena_),
          reader_(engine_, shards_, rank_bits_),
          restored_(num_shards, num_groups, arena_, engine_),
          order_(engine_.num_lanes()) {
        shards_.add_all();
    }

    Engine& engine() { return engine_; }

    // --- batches

    // Ticket of the batch, whose outputs are set. On bad_alloc or overflow_error the batch has left no trace.
    std::int64_t insert(Batch& batch) {
        const auto open = engine_.enter();
        const std::shared_lock<Visitors> order(order_mutex_);
        const TicketRoom room(*this);
        while (true) {
            Passage passage{batch, order_.enter()};
            if (engine_.shares_lanes() || batch.num_lanes() == 1) {
                pass_all_lanes(passage);
            } else {
                pass_lane_by_lane(passage);
            }
            const auto end =
                order_.leave(passage.way, [&] { finish(passage); }, [&] { undo_shards(passage.way.ticket() - 1); });
            if (end == BatchOrder::End::kDone) return passage.way.ticket();
            if (end == BatchOrder::End::kFailed) std::rethrow_exception(passage.error);
            batch.forget_new();
        }
    }

    void lookup(Batch& batch) {
        const auto open = engine_.enter();
        engine_.pool().run(batch.num_lanes(), [&](std::size_t lane) {
            const RangeLock lock = lock_lane(batch, lane);
            ProbeCounts counts;
            const auto write = [&](const Flight& flight, std::size_t i, std::uint64_t at) {
                *flight.locations[i] = at == kAbsent ? kAbsent : rank_bits_ | at;
            };
            const auto compared = [&](const Flight& flight, std::size_t i, const Entry& entry, bool found) {
                if (found) write(flight, i, shards_[flight.shards[i]].committed(entry));
                return found;
            };
            fly(batch, lane, counts, compared, [&](const Flight& flight, std::size_t i, auto&) {
                write(flight, i, shards_[flight.shards[i]].find_committed(flight.probe(i), counts));
                return false;
            });
        });
    }

    // As lookup(), and the rows that are found are gone: their places are free. Refused while tickets are open, whose
    // batches may use them. On bad_alloc the rows up to some key are gone, and its location and the later ones' are not
    // set.
    void remove(Batch& batch) {
        const auto open = engine_.enter();
        const std::lock_guard<Visitors> stay(stay_mutex_);
        const std::lock_guard<Visitors> order(order_mutex_);
        check_no_tickets();
        for (std::size_t lane = 0; lane < batch.num_lanes(); ++lane) {
            const RangeLock lock = lock_lane(batch, lane);
            ProbeCounts counts;
            const auto none = [](const Flight&, std::size_t, const Entry&, bool) { return false; };
            fly(batch, lane, counts, none, [&](const Flight& flight, std::size_t i, auto&) {
                const std::uint64_t at = shards_[flight.shards[i]].remove_committed(flight.probe(i));
                *flight.locations[i] = at == kAbsent ? kAbsent : rank_bits_ | at;
                if (at != kAbsent) counts_.forget(at);
                return false;
            });
        }
    }

    // --- tickets

    // Of the batches that `used` rows at these locations, one is counted a call, if any. ValueError for locations in
    // chunks that are not of this index; then, and on bad_alloc, nothing has changed.
    //
    // The rows may be of later tickets: who has their locations has seen index() return, so that they are in the
    // journal. A location of no row, in a chunk that is there, cannot be told from one of a row without a look at each
    // place, and is counted; so the count of a new row begins at 0 with the first commit() after it came, before
    // anything is counted. That costs a new row a store, beside the last one's, and known rows nothing.
    void commit(std::int64_t ticket, const std::vector<const std::uint64_t*>& used,
                const std::vector<std::size_t>& sizes) {
        const auto open = engine_.enter();
        const std::lock_guard<std::mutex> cut(cut_mutex_);
        check_ticket(ticket, false);
        std::vector<std::size_t> num_chunks;
        if (!used.empty()) num_chunks = check_locations(used, sizes);
        counts_.make_room(num_chunks);
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = shards_.lock(s);
            shards_[s].commit(ticket, UseCounts::Forgetting(counts_));
        }
        if (!used.empty()) counts_.add(used, sizes, num_chunks, engine_.pool());
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        pending_.erase(pending_.begin(), std::upper_bound(pending_.begin(), pending_.end(), ticket));
        last_committed_ = ticket;
    }

    // `none`: all that is uncommitted.
    void undo_after(std::int64_t ticket, bool none) {
        const auto open = engine_.enter();
        const std::lock_guard<Visitors> order(order_mutex_);
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
        return shards_.sum([](const Shard& shard) { return shard.rows() - shard.provisional(); });
    }

    std::uint64_t provisional_rows() {
        const auto open = engine_.enter();
        return shards_.sum([](const Shard& shard) { return shard.provisional(); });
    }

    std::uint64_t nbytes() {
        const auto open = engine_.enter();
        return arena_.nbytes() + shards_.sum([](const Shard& shard) { return shard.nbytes(); });
    }

    // -1 if no row of the chunk is in use.
    std::int64_t chunk_group(std::uint64_t chunk) {
        const auto open = engine_.enter();
        const std::size_t s = chunk % shards_.size(), k = chunk / shards_.size();
        const auto lock = shards_.lock(s);
        const Chunks& chunks = shards_[s].chunks();
        return k < chunks.size() ? static_cast<std::int64_t>(chunks[k].group) : -1;
    }

    Stats stats() {
        const auto open = engine_.enter();
        Stats out;
        ProbeCounts probes;
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = shards_.lock(s);
            const Shard& shard = shards_[s];
            probes.add(shards_.probes(s));
            out.rows += shard.rows() - shard.provisional();
            out.provisional += shard.provisional();
            out.free_places += shard.chunks().num_free();
            out.capacity += shard.capacity();
            out.nbytes += shard.nbytes();
            out.growths += shard.growths();
            out.fullest_shard = std::max<std::uint64_t>(out.fullest_shard, shard.rows());
            out.lock_wait_ms += shards_.wait_ms(s);
        }
        out.nbytes += arena_.nbytes();
        out.counts_nbytes = counts_.nbytes();
        out.keys = probes.keys;
        out.probe_lines = probes.lines;
        out.longest_probe = probes.longest;
        out.scratch_nbytes = engine_.scratch_nbytes();
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        out.longest_call_ms = longest_call_ms_;
        return out;
    }

    // --- use counts

    // Decayed uses of the rows at `size` locations; 0 for kAbsent. ValueError for locations that are not of this index.
    void uses(const std::uint64_t* locations, std::size_t size, float* out) {
        const auto open = engine_.enter();
        check_locations({locations}, {size});
        counts_.read(locations, size, out);
    }

    // --- snapshots

    using Cut = headrace::Cut;

    std::unique_ptr<Cut> open_cut() {
        auto cut = std::make_unique<Cut>();
        cut->open_ = engine_.enter();
        cut->stay_ = std::shared_lock<Visitors>(stay_mutex_);
        const std::lock_guard<std::mutex> lock(cut_mutex_);
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto shard_lock = shards_.lock(s);
            cut->shards.emplace_back(shards_[s].chunks());
        }
        cut->counted_batches = counts_.batches();
        if (cut->counted_batches > 0) copy_weights(*cut, counts_);
        return cut;
    }

    // The rows of one shard, in the order of their places.
    void cut_rows(const Cut& cut, std::size_t s, Rows& out) { reader_.cut_rows(cut, s, out); }

    // As RowReader's.
    Rows bucket_rows(std::uint32_t first, std::uint32_t last) {
        const auto open = engine_.enter();
        return reader_.bucket_rows(first, last);
    }

    // --- restore: shard by shard into shards of its own, which take the place of an empty index's

    // As Restore::add_shard().
    void restore_shard(std::size_t s, const std::vector<std::uint32_t>& groups,
                       const std::vector<std::uint32_t>& extents, std::size_t rows, const std::uint32_t* tables,
                       const std::uint8_t* missing, const std::uint64_t* ids, const std::uint64_t* locations) {
        const auto open = engine_.enter();
        const std::lock_guard<Visitors> order(order_mutex_);
        if (!restored_.begun()) check_empty();
        restored_.add_shard(s, groups, extents, rows, tables, missing, ids, locations);
    }

    // After the last shard; `weights` of the rows at `locations`, none if no uses were counted.
    void finish_restore(std::uint64_t counted_batches, const std::uint64_t* locations, const float* weights,
                        std::size_t size) {
        const auto alone = engine_.enter_alone();
        if (!restored_.complete()) throw std::runtime_error("not every shard has been restored");
        check_empty();
        counts_.restore(counted_batches, locations, weights, size);
        restored_.put_into(shards_);
    }

    void drop_restore() {
        const auto open = engine_.enter();
        const std::lock_guard<Visitors> order(order_mutex_);
        restored_.clear();
    }

    // Frees the rows. Later calls throw; a second close() does nothing.
    void close() {
        engine_.close([this] {
            shards_.clear();
            restored_.clear();
        });
    }

  private:
    using RangeLock = LockedShards::RangeLock;

    std::size_t first_of(const Batch& batch, std::size_t lane) const {
        return lane * (shards_.size() / batch.num_lanes());
    }
    RangeLock lock_lane(const Batch& batch, std::size_t lane) {
        return {shards_, first_of(batch, lane), first_of(batch, lane + 1)};
    }

    template <class OnCompared, class OnLeft>
    void fly(Batch& batch, std::size_t lane, ProbeCounts& counts, OnCompared&& on_compared, OnLeft&& on_left) {
        each_key(batch, lane, counts, std::as_const(shards_), on_compared, on_left);
    }

    // A batch on its way through the lanes.
    struct Passage {
        Batch& batch;
        const BatchOrder::Way way;
        double busy_ms = 0;
        std::atomic<std::size_t> new_rows{0};
        std::exception_ptr error{};
    };

    // Room for a ticket among the pending ones, as long as it lives. May throw bad_alloc.
    class TicketRoom {
      public:
        explicit TicketRoom(Dit& dit) : dit_(dit) {
            const std::lock_guard<std::mutex> tickets(dit_.ticket_mutex_);
            const std::size_t wanted = dit_.pending_.size() + dit_.entering_ + 1;
            if (wanted > dit_.pending_.capacity()) dit_.pending_.reserve(wanted * 2 + 16);
            ++dit_.entering_;
        }
        TicketRoom(const TicketRoom&) = delete;
        TicketRoom& operator=(const TicketRoom&) = delete;
        ~TicketRoom() {
            const std::lock_guard<std::mutex> tickets(dit_.ticket_mutex_);
            --dit_.entering_;
        }

      private:
        Dit& dit_;
    };

    // One batch at a time, all threads at its lanes.
    void pass_all_lanes(Passage& passage) {
        const std::size_t num_lanes = order_.num_lanes();
        if (order_.await(passage.way, num_lanes - 1)) {
            attempt(passage, [&] {
                engine_.pool().run(passage.batch.num_lanes(), [&](std::size_t lane) { insert(passage, lane); });
            });
        }
        for (std::size_t lane = 0; lane < num_lanes; ++lane) order_.pass(passage.way, lane);
    }

    // Its thread takes the batch through the lanes, behind others and before others.
    void pass_lane_by_lane(Passage& passage) {
        for (std::size_t lane = 0; lane < order_.num_lanes(); ++lane) {
            if (order_.await(passage.way, lane)) {
                attempt(passage, [&] { insert(passage, lane); });
            }
            order_.pass(passage.way, lane);
        }
    }

    template <class Body>
    void attempt(Passage& passage, Body&& body) {
        const auto begin = Clock::now();
        try {
            body();
        } catch (...) {
            passage.error = std::current_exception();
            order_.fail(passage.way);
        }
        passage.busy_ms += ms_since(begin);
    }

    void finish(Passage& passage) {
        const auto begin = Clock::now();
        shards_.grow_crowded(passage.new_rows);
        passage.busy_ms += passage.batch.busy_ms + ms_since(begin);
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        pending_.push_back(passage.way.ticket());
        longest_call_ms_ = std::max(longest_call_ms_, passage.busy_ms);
    }

    void insert(Passage& passage, std::size_t lane) {
        Batch& batch = passage.batch;
        const std::int64_t ticket = passage.way.ticket();
        const RangeLock lock = lock_lane(batch, lane);
        ProbeCounts counts;
        std::size_t new_rows = 0;
        const std::uint64_t rank_bits = rank_bits_;
        const auto compared = [rank_bits](const Flight& flight, std::size_t i, const Entry& entry, bool found) {
            *flight.locations[i] = rank_bits | entry.place();
            return found;
        };
        fly(batch, lane, counts, compared, [&](const Flight& flight, std::size_t i, auto&) {
            Shard& shard = shards_[flight.shards[i]];
            const std::uint64_t growths = shard.growths();
            bool is_new;
            const std::uint64_t at = shard.find_or_add(flight.probe(i), flight.groups[i], ticket, counts, is_new);
            *flight.locations[i] = rank_bits | at;
            *flight.is_new[i] = is_new;
            new_rows += is_new;
            return shard.growths() != growths;
        });
        shards_.count(first_of(batch, lane), counts);
        passage.new_rows += new_rows;
    }

    void undo_shards(std::int64_t ticket) {
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = shards_.lock(s);
            shards_[s].undo_after(ticket);
        }
    }

    void check_ticket(std::int64_t ticket, bool or_last_committed) {
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        if (std::binary_search(pending_.begin(), pending_.end(), ticket)) return;
        if (ticket <= last_committed_ && ticket >= 0) {
            if (or_last_committed && ticket == last_committed_) return;
            throw std::invalid_argument("ticket " + std::to_string(ticket) +
                                        " is no longer open; committed last: " + std::to_string(last_committed_) +
                                        ", and all before it" + (or_last_committed ? "" : kCommitInOrder));
        }
        throw std::invalid_argument(
            "unknown ticket " + std::to_string(ticket) + ": " +
            (ticket >= 0 && ticket < order_.next_ticket() ? "it was undone" : "this index never gave it out"));
    }

    void check_no_tickets() {
        const std::lock_guard<std::mutex> tickets(ticket_mutex_);
        if (pending_.empty()) return;
        throw std::runtime_error(
            std::to_string(pending_.size()) +
            " tickets are open, and their batches may use the rows: commit or undo them first (those of a "
            "loader: finish its epoch, or loader.close())");
    }

    void check_empty() {
        std::unique_lock<std::mutex> tickets(ticket_mutex_);
        const bool pending = !pending_.empty();
        tickets.unlock();
        if (pending || shards_.sum([](const Shard& shard) { return shard.rows() + shard.chunks().size(); }) != 0) {
            throw std::runtime_error(
                "restore needs an empty index, new or of a loader that has given no batch yet: this one has rows or "
                "uncommitted tickets");
        }
    }

    // Chunks in use of this owner; the offset of any location is legal.
    // Returns how many chunks each shard has.
    std::vector<std::size_t> check_locations(const std::vector<const std::uint64_t*>& locations,
                                             const std::vector<std::size_t>& sizes) {
        std::vector<std::size_t> num_chunks;
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = shards_.lock(s);
            num_chunks.push_back(shards_[s].chunks().size());
        }
        const std::size_t shares = engine_.pool().shares();
        std::vector<std::size_t> foreign(shares);
        for (std::size_t i = 0; i < locations.size(); ++i) {
            engine_.pool().run(shares, [&](std::size_t share) {
                const std::size_t begin = sizes[i] * share / shares, end = sizes[i] * (share + 1) / shares;
                foreign[share] = first_foreign(locations[i], begin, end, num_chunks);
            });
            for (std::size_t share = 0; share < shares; ++share) {
                if (foreign[share] == sizes[i] * (share + 1) / shares) continue;
                throw std::invalid_argument("location " + std::to_string(locations[i][foreign[share]]) +
                                            " at position " + std::to_string(foreign[share]) +
                                            " is of no row of this index");
            }
        }
        return num_chunks;
    }

    // The first position in [begin, end) of a location that is of no chunk, or `end`.
    std::size_t first_foreign(const std::uint64_t* locations, std::size_t begin, std::size_t end,
                              const std::vector<std::size_t>& num_chunks) const {
        const auto last_shard = static_cast<std::uint32_t>(num_chunks.size() - 1);
        const int shift = __builtin_popcount(last_shard);
        for (std::size_t j = begin; j < end; ++j) {
            const std::uint32_t chunk = place_chunk(locations[j] & kPlaceMask);
            const bool known =
                (locations[j] & ~kPlaceMask) == rank_bits_ && chunk >> shift < num_chunks[chunk & last_shard];
            if (!known && locations[j] != kAbsent) return j;
        }
        return end;
    }

    static constexpr const char* kCommitInOrder =
        ". Its rows are permanent, and this call has counted nothing: commit each batch once, in the order of the "
        "tickets, from one thread where several index";

    Engine engine_;
    const std::uint64_t rank_bits_;
    PageArena arena_;
    UseCounts counts_;
    LockedShards shards_;
    RowReader reader_;
    Restore restored_;
    BatchOrder order_;
    Visitors stay_mutex_, order_mutex_;
    std::mutex cut_mutex_, ticket_mutex_;
    std::vector<std::int64_t> pending_;  // uncommitted tickets, rising
    std::size_t entering_ = 0;           // batches that will have one
    std::int64_t last_committed_ = -1;
    double longest_call_ms_ = 0;
};

}  // namespace headrace
