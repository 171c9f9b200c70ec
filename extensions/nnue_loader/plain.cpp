// Stockfish's plain text: lines `fen`, `move`, `score`, `ply`, `result` and, last, `e` for each
// position.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "nnue_loader.h"
#include "record.h"

namespace nnue {
namespace {

constexpr std::string_view kLetters = "PpNnBbRrQqKk";  // of the codes
constexpr int kShown = 60;                             // characters of a line in a sentence

// An entry that is being read; what it lacks at its end is bad.
struct Entry {
  Record record{};
  int64_t ply = 0;
  bool fen = false, score = false, result = false, has_ply = false;
};

// The next word of a line, which loses it; "" at its end.
std::string_view take_word(std::string_view& line) {
  const size_t first = line.find_first_not_of(' ');
  if (first == line.npos) return line = {};
  const size_t end = std::min(line.find(' ', first), line.size());
  const std::string_view word = line.substr(first, end - first);
  line.remove_prefix(end);
  return word;
}

// Reads a FEN's board and side to move; false if they are none.
bool read_fen(std::string_view text, Record& record) {
  const std::string_view board = take_word(text), side = take_word(text);
  uint8_t codes[64];
  int file = 0, rank = 7;
  record.occupied = 0;
  for (const char letter : board) {
    if (letter == '/') {
      if (file != 8 || rank-- == 0) return false;
      file = 0;
    } else if (letter >= '1' && letter <= '8') {
      if ((file += letter - '0') > 8) return false;
    } else {
      const size_t code = kLetters.find(letter);
      if (code == kLetters.npos || file > 7) return false;
      codes[rank * 8 + file] = static_cast<uint8_t>(code);
      record.occupied |= uint64_t{1} << (rank * 8 + file++);
    }
  }
  if (rank || file != 8 || (side != "w" && side != "b")) return false;
  record.stm = side == "w";
  int i = 0;
  for (uint64_t rest = record.occupied; rest && i < kPieces; rest &= rest - 1, ++i)
    record.codes[i / 2] |= static_cast<uint8_t>(codes[std::countr_zero(rest)] << (i % 2 * 4));
  return true;
}

template <class T>
bool read_number(std::string_view text, T& number) {
  const std::string_view word = take_word(text);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc{} && end == word.data() + word.size() && !word.empty();
}

// Reads a line into the entry; what is wrong, or nullptr.
const char* read_line(std::string_view line, Entry& entry) {
  const std::string_view name = take_word(line);
  if (name == "fen")
    return entry.fen = read_fen(line, entry.record), entry.fen ? nullptr : "no FEN";
  if (name == "score") {
    entry.score = read_number(line, entry.record.score);
    return entry.score ? nullptr : "no score of -32768 to 32767";
  }
  if (name == "ply") {
    entry.has_ply = read_number(line, entry.ply);
    return entry.has_ply ? nullptr : "no ply";
  }
  if (name == "result") {
    entry.result = read_number(line, entry.record.result);
    return entry.result ? nullptr : "no result of -1, 0 or 1";
  }
  return name == "move" ? nullptr
                        : "no line of this format, which has fen, move, score, ply, result "
                          "and e";
}

const char* missing(const Entry& entry) {
  if (!entry.fen) return "it has no fen";
  if (!entry.score) return "it has no score";
  if (!entry.result) return "it has no result";
  return entry.has_ply ? nullptr : "it has no ply, by which games are told apart";
}

class Reader {
 public:
  Reader(std::string_view text, nnue_plain& plain, char* error)
      : text_(text), plain_(plain), error_(error) {}

  // Reads one entry; 0 at the end of the text, -1 if it is bad.
  int read(Record& record) {
    Entry entry;
    bool begun = false;
    while (static_cast<size_t>(plain_.offset) < text_.size()) {
      const size_t first = static_cast<size_t>(plain_.offset);
      const size_t end = std::min(text_.find('\n', first), text_.size());
      std::string_view line = text_.substr(first, end - first);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      plain_.offset = static_cast<int64_t>(std::min(end + 1, text_.size()));
      ++plain_.line;
      if (line.find_first_not_of(' ') == line.npos) continue;
      if (line == "e") return finish(entry, record);
      begun = true;
      if (const char* fault = read_line(line, entry)) return say_line(line, fault);
    }
    return begun ? say("the text ends within it", 0) : 0;
  }

 private:
  int finish(Entry& entry, Record& record) {
    if (const char* fault = missing(entry)) return say(fault, 0);
    if (const Fault fault = fault_of(entry.record, board_of(entry.record)))
      return say(fault.text, fault.number);
    if (plain_.record && entry.ply <= plain_.ply) ++plain_.game;
    plain_.ply = entry.ply;
    entry.record.game = plain_.game;
    record = entry.record;
    ++plain_.record;
    return 1;
  }

  int say(const char* fault, int number) {
    char text[NNUE_ERROR_BYTES / 2];
    std::snprintf(text, sizeof text, fault, number);
    std::snprintf(error_, NNUE_ERROR_BYTES, "record %lld, which ends in line %lld: %s",
                  static_cast<long long>(plain_.record), static_cast<long long>(plain_.line), text);
    return -1;
  }

  int say_line(std::string_view line, const char* fault) {
    std::snprintf(error_, NNUE_ERROR_BYTES, "record %lld, line %lld: '%.*s' is %s",
                  static_cast<long long>(plain_.record), static_cast<long long>(plain_.line),
                  static_cast<int>(std::min<size_t>(line.size(), kShown)), line.data(), fault);
    return -1;
  }

  std::string_view text_;
  nnue_plain& plain_;
  char* error_;
};

}  // namespace
}  // namespace nnue

extern "C" int64_t nnue_plain_read(const char* text, int64_t bytes, nnue_plain* plain,
                                   void* records, int64_t capacity, char* error) {
  nnue::Reader reader({text, static_cast<size_t>(bytes)}, *plain, error);
  for (int64_t i = 0; i < capacity; ++i) {
    nnue::Record record;
    const int found = reader.read(record);
    if (found <= 0) return found < 0 ? -1 : i;
    std::memcpy(static_cast<char*>(records) + i * static_cast<int64_t>(sizeof record), &record,
                sizeof record);
  }
  return capacity;
}
