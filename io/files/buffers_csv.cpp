#include "io/files/buffers_csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

namespace sluice {
namespace {

enum class Column : std::uint8_t { id, lower, upper, end, size, alignment, gaps, ignored };

struct ColumnName {
  std::string_view name;
  Column column;
};
constexpr std::array<ColumnName, 13> column_names{{{"id", Column::id},
                                                   {"buffer", Column::id},
                                                   {"buffer_id", Column::id},
                                                   {"lower", Column::lower},
                                                   {"start", Column::lower},
                                                   {"begin", Column::lower},
                                                   {"upper", Column::upper},
                                                   {"end", Column::end},
                                                   {"size", Column::size},
                                                   {"alignment", Column::alignment},
                                                   {"gaps", Column::gaps},
                                                   {"hint", Column::ignored},
                                                   {"offset", Column::ignored}}};

constexpr auto example = "the first line is like id,lower,upper,size";

/// What is shown of a field: not more than fits into a line, and nothing that a terminal acts on.
std::string shown(std::string_view text) {
  std::string out(text.substr(0, 40));
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  return "'" + out + (text.size() > 40 ? "...'" : "'");
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t end = std::min(line.find(',', at), line.size());
    std::string_view field = line.substr(at, end - at);
    while (!field.empty() && (field.front() == ' ' || field.front() == '\t')) field.remove_prefix(1);
    while (!field.empty() && (field.back() == ' ' || field.back() == '\t')) field.remove_suffix(1);
    fields.push_back(field);
    at = end + 1;
  }
  return fields;
}

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Result<std::vector<BufferRow>> read(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line_;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (std::any_of(line.begin(), line.end(), [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == 127; }))
        return wrong("is not text; give a table with commas, as MiniMalloc has them");
      if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
      const Status taken = columns_.empty() ? take_header(fields_of(line)) : take_row(fields_of(line));
      if (!taken.ok()) return taken.error();
    }
    if (columns_.empty()) return bad_request(name_ + ": is empty; " + example);
    if (rows_.empty()) return bad_request(name_ + ": has no buffers; give a line for each below the names of columns");
    return std::move(rows_);
  }

 private:
  Error wrong(const std::string& what) const { return bad_request(name_ + ":" + std::to_string(line_) + ": " + what); }

  Status take_header(const std::vector<std::string_view>& fields) {
    for (const std::string_view field : fields) {
      const auto* const known =
          std::find_if(column_names.begin(), column_names.end(), [&](const ColumnName& c) { return c.name == field; });
      if (known == column_names.end()) return wrong("names a column " + shown(field) + "; " + example);
      const bool is_end = known->column == Column::upper || known->column == Column::end;
      const auto same = [&](Column c) {
        return c == known->column || (is_end && (c == Column::upper || c == Column::end));
      };
      if (known->column != Column::ignored && std::any_of(columns_.begin(), columns_.end(), same))
        return wrong("has a second column for " + std::string(field) + "; name each once");
      columns_.push_back(known->column);
    }
    const auto has = [&](Column c) { return std::find(columns_.begin(), columns_.end(), c) != columns_.end(); };
    if (!has(Column::id)) return wrong("names no column id; " + std::string(example));
    if (!has(Column::lower)) return wrong("names no column lower; " + std::string(example));
    if (!has(Column::upper) && !has(Column::end)) return wrong("names no column upper; " + std::string(example));
    if (!has(Column::size)) return wrong("names no column size; " + std::string(example));
    return success();
  }

  Result<std::uint64_t> number(std::string_view field, const char* column) const {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    const bool is_whole = end == field.data() + field.size() && !field.empty();
    if (error == std::errc::result_out_of_range || (is_whole && value >= std::uint64_t{1} << 62))
      return wrong(std::string(column) + " " + shown(field) + " is too large; it is to be below 2^62");
    if (error != std::errc() || !is_whole)
      return wrong(std::string(column) + " " + shown(field) + " is no whole number from 0 on; give one");
    return value;
  }

  Status take_row(const std::vector<std::string_view>& fields) {
    if (fields.size() != columns_.size())
      return wrong("has " + std::to_string(fields.size()) + " fields, and the first line names " +
                   std::to_string(columns_.size()) + "; give one for each");
    BufferRow row;
    for (std::size_t i = 0; i < fields.size(); ++i) SLUICE_TRY(take_field(columns_[i], fields[i], row));
    if (row.lower >= row.upper)
      return wrong("lower " + std::to_string(row.lower) + " is not below upper " + std::to_string(row.upper) +
                   ", before which a life ends; give a life");
    const auto [first, is_new] = line_of_.try_emplace(row.id, line_);
    if (!is_new)
      return wrong("id " + shown(row.id) + " is that of line " + std::to_string(first->second) +
                   " too; give each buffer its own");
    total_ += row.bytes;
    if (total_ > max_buffer_bytes)
      return wrong("with size " + std::to_string(row.bytes) + " all buffers have more than 2^60 bytes; give less");
    rows_.push_back(std::move(row));
    return success();
  }

  Status take_field(Column column, std::string_view field, BufferRow& row) const {
    switch (column) {
      case Column::id:
        if (field.empty()) return wrong("has no id; give each buffer one");
        row.id = field;
        return success();
      case Column::lower: {
        SLUICE_ASSIGN(row.lower, number(field, "lower"));
        return success();
      }
      case Column::upper: {
        SLUICE_ASSIGN(row.upper, number(field, "upper"));
        return success();
      }
      case Column::end: {
        SLUICE_ASSIGN(row.upper, number(field, "end"));
        ++row.upper;
        return success();
      }
      case Column::size: {
        SLUICE_ASSIGN(row.bytes, number(field, "size"));
        if (row.bytes == 0) return wrong("size is 0; leave out buffers of no bytes");
        return success();
      }
      case Column::alignment:
        if (field != "1") return wrong("has an alignment of its own, " + shown(field) + "; all are to have one");
        return success();
      case Column::gaps:
        if (!field.empty()) return wrong("has gaps, " + shown(field) + "; give each part of such a life its own line");
        return success();
      case Column::ignored: return success();
    }
    return success();
  }

  const std::string& name_;
  std::size_t line_ = 0;
  std::vector<Column> columns_;
  std::vector<BufferRow> rows_;
  std::unordered_map<std::string, std::size_t> line_of_;
  std::uint64_t total_ = 0;
};

}  // namespace

Result<std::vector<BufferRow>> parse_buffers_csv(std::string_view text, const std::string& name) {
  return Reader(name).read(text);
}

std::string to_buffers_csv(std::span<const BufferRow> buffers, std::span<const std::uint64_t> offsets) {
  SLUICE_CHECK(buffers.size() == offsets.size(), "%zu buffers, %zu offsets", buffers.size(), offsets.size());
  std::string text = placed_csv_begin;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const BufferRow& b = buffers[i];
    text += b.id;
    for (const std::uint64_t value : {b.lower, b.upper, b.bytes, offsets[i]}) text += "," + std::to_string(value);
    text += "\n";
  }
  return text;
}

}  // namespace sluice
