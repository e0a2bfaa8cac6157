#include "io/tokens/text_source.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/tokens/text_check.h"
#include "sluice/size.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

/// Reading begins small, for small files, and doubles.
constexpr std::size_t read_bytes_min = 1u << 14, read_bytes_max = 1u << 20;
constexpr std::uint64_t json_depth_max = 64;

/// Takes one string out of an object of untrusted JSON, and builds nothing of the rest.
class FieldReader final : public nlohmann::json_sax<Json> {
 public:
  FieldReader(const std::string& field, std::string& out) : field_(field), out_(out) {}

  /// Why the line was refused; empty if it was not.
  std::string wrong(bool parsed) const {
    if (!wrong_.empty()) return wrong_;
    if (!parsed) return "is not JSON";
    if (!found_) return missing();
    return {};
  }

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary"); }
  bool string(string_t& value) override {
    if (depth_ != 1 || !wanted_) return other("a string");
    out_ = std::move(value);
    found_ = true;
    wanted_ = false;
    return true;
  }
  bool start_object(std::size_t) override { return (depth_ == 0 || other("an object")) && deeper(); }
  bool start_array(std::size_t) override { return other("an array") && deeper(); }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ != 1) return true;
    wanted_ = key == field_;
    return !(wanted_ && found_) || refuse(fmt::format("has \"{}\" twice", field_));
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return refuse(fmt::format("is not JSON at byte {}", position));
  }

 private:
  std::string missing() const {
    return fmt::format("has no string \"{}\"; 'sluice data tokenize --jsonl-field' names another field", field_);
  }
  bool refuse(std::string why) {
    if (wrong_.empty()) wrong_ = std::move(why);
    return false;
  }
  /// A value that is not the text.
  bool other(const char* what) {
    if (depth_ == 0) return refuse(fmt::format("is {} and not an object", what));
    if (depth_ == 1 && wanted_) return refuse(fmt::format("has {} as \"{}\" and not a string", what, field_));
    return true;
  }
  bool deeper() {
    return ++depth_ <= json_depth_max || refuse(fmt::format("is nested deeper than {} levels", json_depth_max));
  }

  const std::string& field_;
  std::string& out_;
  std::uint64_t depth_ = 0;
  bool wanted_ = false, found_ = false;
  std::string wrong_;
};

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

bool is_jsonl_name(const std::string& path) {
  const std::string name = unpacked_name(path);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

bool TextSource::is_jsonl(std::size_t input) const {
  if (options_.kind != TextKind::automatic) return options_.kind == TextKind::jsonl;
  return is_jsonl_name(options_.paths[input]);
}

Result<TextSource> TextSource::open(Options options) {
  TextSource source;
  source.options_ = std::move(options);
  bool sized = true;
  for (const std::string& path : source.options_.paths) {
    struct stat st {};
    const bool there = path == "-" || stat(path.c_str(), &st) == 0;
    const bool regular = path != "-" && S_ISREG(st.st_mode);
    sized = sized && regular;
    source.bytes_total_ += regular ? static_cast<std::uint64_t>(st.st_size) : 0;
    // What is wrong with the last input is said before the first is read. Opening a pipe would take from it.
    if (regular || !there || S_ISDIR(st.st_mode)) {
      const auto opened = TextStream::open(path);
      if (!opened.ok()) return opened.error();
    }
  }
  if (!sized) source.bytes_total_ = 0;
  return source;
}

void TextSource::close() {
  bytes_before_ += stream_->bytes_read();
  stream_.reset();
  lines_.clear();
  lines_at_ = 0;
  lines_step_ = 0;
  line_ = 0;
  checked_ = false;
  ++input_;
}

Result<bool> TextSource::next(TextPiece& piece) {
  while (input_ < options_.paths.size()) {
    if (!stream_) {
      SLUICE_ASSIGN(stream_, TextStream::open(options_.paths[input_]));
    }
    piece.input = input_;
    piece.document = documents_;
    if (!is_jsonl(input_)) {
      SLUICE_TRY(next_part(piece));
      return true;
    }
    SLUICE_ASSIGN(const bool found, next_line(piece));
    if (found) return true;
    close();
  }
  return false;
}

Status TextSource::next_part(TextPiece& piece) {
  const std::size_t most = options_.part_bytes > 0 ? options_.part_bytes : options_.document_bytes_max + 1;
  std::size_t done = 0;
  piece.line = 0;
  piece.last = false;
  while (done < most && !piece.last) {
    piece.data.resize(std::max(done, std::min(most, done + std::max(done, read_bytes_min))));
    SLUICE_ASSIGN(const std::size_t n, stream_->read(std::span(piece.data).subspan(done)));
    piece.last = done + n < piece.data.size();
    done += n;
  }
  piece.data.resize(done);
  if (!std::exchange(checked_, true) && options_.kind == TextKind::automatic)
    SLUICE_TRY(check_text(piece.data, name(input_)));
  if (options_.part_bytes == 0 && done > options_.document_bytes_max)
    return bad_request(
        fmt::format("{} is longer than {}; split it", where(piece), format_bytes(options_.document_bytes_max)));
  if (piece.last) {
    ++documents_;
    close();
  }
  return success();
}

/// Where the line that begins at lines_at_ ends: at a newline, or at the end of the file (lines_.size()).
Result<std::size_t> TextSource::find_newline() {
  std::size_t searched = lines_at_;
  for (;;) {
    const std::size_t found = lines_.find('\n', searched);
    if (found != std::string::npos) return found;
    lines_.erase(0, std::exchange(lines_at_, 0));
    searched = lines_.size();
    if (lines_.size() > options_.document_bytes_max)
      return bad_request(fmt::format("{} line {} is longer than {}; split it", name(input_), line_ + 1,
                                     format_bytes(options_.document_bytes_max)));
    lines_step_ = std::clamp(2 * lines_step_, read_bytes_min, read_bytes_max);
    lines_.resize(searched + lines_step_);
    SLUICE_ASSIGN(const std::size_t n, stream_->read(std::span(lines_).subspan(searched)));
    lines_.resize(searched + n);
    if (n == 0) return lines_.size();
  }
}

Result<bool> TextSource::next_line(TextPiece& piece) {
  for (;;) {
    SLUICE_ASSIGN(const std::size_t end, find_newline());
    if (lines_at_ == lines_.size()) return false;
    const std::string_view line = std::string_view(lines_).substr(lines_at_, end - lines_at_);
    lines_at_ = std::min(end + 1, lines_.size());
    ++line_;
    if (is_blank(line)) continue;
    piece.data.assign(line);
    piece.line = line_;
    piece.last = true;
    ++documents_;
    return true;
  }
}

std::string TextSource::name(std::size_t input) const {
  return options_.paths[input] == "-" ? "standard input" : options_.paths[input];
}

std::string TextSource::where(const TextPiece& piece) const {
  return piece.line == 0 ? name(piece.input) : fmt::format("{} line {}", name(piece.input), piece.line);
}

Status TextSource::text_of(const TextPiece& piece, std::string& storage, std::string_view& text) const {
  text = piece.data;
  if (piece.line == 0 || options_.whole_lines) return success();
  FieldReader reader(options_.field, storage);
  const bool parsed = Json::sax_parse(piece.data.begin(), piece.data.end(), &reader);
  const std::string wrong = reader.wrong(parsed);
  if (!wrong.empty()) return bad_request(fmt::format("{} {}", where(piece), wrong));
  text = storage;
  return success();
}

}  // namespace sluice
