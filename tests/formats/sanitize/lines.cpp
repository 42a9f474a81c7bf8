// Random blocks of lines, most of them well-formed, some damaged: tiles and single lines give the same columns and the
// same faults, and no byte outside the text or the columns is touched (each lies in a heap block of its own).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "criteo_parser.hpp"

using namespace headrace::formats;
using Random = std::mt19937_64;

namespace {

struct Output {
    std::vector<std::unique_ptr<std::uint8_t[]>> memory;
    std::vector<Column> columns;
    std::int64_t rows = 0, lines = 0;
    bool whole = false;
    std::vector<Fault> faults;
    std::vector<std::int64_t> nulls;
};

std::size_t width(Kind kind) { return kind == kLabel || kind == kHex32 ? 4 : 8; }

Output parse(const std::vector<Kind>& kinds, const std::vector<bool>& required, const std::uint8_t* text,
             std::int64_t size, std::int64_t lines, std::int64_t max_line_bytes, const Kernels* kernels) {
    Output out;
    for (std::size_t c = 0; c < kinds.size(); ++c) out.columns.push_back({kinds[c], required[c], nullptr, nullptr});
    const std::int64_t count = static_cast<std::int64_t>(kinds.size());
    const std::int64_t most = max_rows(size, min_row_bytes(out.columns.data(), count)) + 1;
    const std::size_t capacity = static_cast<std::size_t>(std::min(lines, most));
    for (Column& column : out.columns) {
        const std::size_t bits = (capacity + 7) / 8;
        out.memory.emplace_back(new std::uint8_t[capacity * width(column.kind)]());
        column.values = out.memory.back().get();
        out.memory.emplace_back(new std::uint8_t[bits]);
        column.validity = out.memory.back().get();
        std::memset(column.validity, 0xFF, bits);
    }
    LineParser parser(out.columns.data(), count, max_line_bytes, kernels);
    out.whole = parser.parse(text, size, lines);
    out.rows = parser.rows();
    out.lines = parser.lines();
    out.faults = parser.faults();
    for (std::int64_t c = 0; c < count; ++c) out.nulls.push_back(parser.nulls(c));
    return out;
}

bool same(const Output& a, const Output& b) {
    if (a.rows != b.rows || a.lines != b.lines || a.whole != b.whole || a.nulls != b.nulls) return false;
    if (a.faults.size() != b.faults.size()) return false;
    if (!a.faults.empty() && std::memcmp(a.faults.data(), b.faults.data(), a.faults.size() * sizeof(Fault)) != 0) {
        return false;
    }
    for (std::size_t c = 0; c < a.columns.size(); ++c) {
        const std::size_t rows = static_cast<std::size_t>(a.rows);
        const std::size_t bytes = rows * width(a.columns[c].kind);
        if (std::memcmp(a.columns[c].values, b.columns[c].values, bytes) != 0) return false;
        for (std::size_t r = 0; r < rows; ++r) {
            if (((a.columns[c].validity[r / 8] ^ b.columns[c].validity[r / 8]) >> (r % 8) & 1) != 0) return false;
        }
    }
    return true;
}

std::size_t below(Random& random, std::size_t n) { return static_cast<std::size_t>(random() % n); }

std::string digits(Random& random, const char* alphabet, std::size_t kinds, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += alphabet[below(random, kinds)];
    return text;
}

std::string field(Random& random, Kind kind, bool required) {
    if (kind == kLabel) return below(random, 30) == 0 ? "1" : "0";
    if (!required && below(random, 4) == 0) return "";
    const bool common = below(random, 50) != 0;
    if (kind == kHex32) {
        return digits(random, "0123456789abcdefABCDEF", 22, common ? 8 : 1 + below(random, 8));
    }
    if (kind == kHex64) return digits(random, "0123456789abcdef", 16, 1 + below(random, 16));
    const std::string sign = kind == kInt64 && below(random, 16) == 0 ? "-" : "";
    return sign + digits(random, "0123456789", 10, 1 + below(random, common ? 8 : 20));
}

std::string block(Random& random, const std::vector<Kind>& kinds, const std::vector<bool>& required) {
    std::string text;
    const std::size_t lines = below(random, 200);
    const bool returns = below(random, 4) == 0;
    for (std::size_t i = 0; i < lines; ++i) {
        for (std::size_t c = 0; c < kinds.size(); ++c) {
            if (c != 0) text += '\t';
            text += field(random, kinds[c], required[c]);
        }
        if (returns && below(random, 8) != 0) text += '\r';
        if (i + 1 < lines || below(random, 2) == 0) text += '\n';
    }
    const char damage[] = "\t\n\r\0-0fgG :/@`\xff";
    for (std::size_t n = below(random, 3) * below(random, 4); n > 0 && !text.empty(); --n) {
        const std::size_t at = below(random, text.size());
        const char byte = damage[below(random, sizeof damage - 1)];
        switch (below(random, 3)) {
            case 0:
                text[at] = byte;
                break;
            case 1:
                text.insert(at, 1 + below(random, 3), byte);
                break;
            default:
                text.erase(at, 1 + below(random, 20));
        }
    }
    return text;
}

void check(Random& random) {
    const std::vector<Kind> all = {kLabel, kInt64, kUint64, kHex32, kHex64};
    std::vector<Kind> kinds;
    std::vector<bool> required;
    for (std::size_t n = 1 + below(random, below(random, 2) == 0 ? 4 : 45); n > 0; --n) {
        kinds.push_back(all[below(random, all.size())]);
        required.push_back(kinds.back() == kLabel || below(random, 6) == 0);
    }
    const std::string text = block(random, kinds, required);
    std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[text.size()]);
    std::memcpy(bytes.get(), text.data(), text.size());
    const std::int64_t size = static_cast<std::int64_t>(text.size());
    const std::int64_t known = count_lines(bytes.get(), size);
    const std::int64_t lines = below(random, 8) == 0 ? known / 2 : known + static_cast<std::int64_t>(below(random, 3));
    const std::int64_t most = below(random, 8) == 0 ? 1 + static_cast<std::int64_t>(below(random, 400)) : 1 << 20;
    const Output tiles = parse(kinds, required, bytes.get(), size, lines, most, best_kernels());
    const Output single = parse(kinds, required, bytes.get(), size, lines, most, nullptr);
    if (!same(tiles, single)) {
        std::printf("tiles and single lines differ: %zu columns, %zu bytes\n", kinds.size(), text.size());
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::exit(1);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 4000;
    Random random(20261130);
    for (int i = 0; i < rounds; ++i) check(random);
    std::puts("ok");
}
