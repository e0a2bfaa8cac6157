#include "io/weights/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "io/files/json_guard.h"

namespace sluice::safetensors {
namespace {

using Json = nlohmann::json;

constexpr std::size_t shape_rank_max = 16;
constexpr std::uint64_t values_max = 1u << 20;        // some 100,000 tensors
constexpr std::size_t metadata_max = 1u << 14;        // a handful, of any writer that is known
constexpr std::uint64_t index_values_max = 1u << 18;  // one for each tensor

std::optional<TensorDtype> parse_dtype(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(TensorDtype::f64); ++i)
    if (name == tensor_dtype_name(static_cast<TensorDtype>(i))) return static_cast<TensorDtype>(i);
  return std::nullopt;
}

/// Refuses every event of a parser that a derived class does not ask for, and remembers why.
class Events : public nlohmann::json_sax<Json> {
 public:
  const std::string& wrong() const { return wrong_; }

  bool null() override { return unexpected(); }
  bool boolean(bool) override { return unexpected(); }
  bool number_integer(number_integer_t) override { return unexpected(); }
  bool number_unsigned(number_unsigned_t) override { return unexpected(); }
  bool number_float(number_float_t, const string_t&) override { return unexpected(); }
  bool string(string_t&) override { return unexpected(); }
  bool binary(binary_t&) override { return unexpected(); }
  bool start_array(std::size_t) override { return unexpected(); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return refuse(fmt::format("it is not JSON at byte {}", position));
  }

 protected:
  virtual bool unexpected() = 0;
  bool refuse(std::string why) {
    if (wrong_.empty()) wrong_ = std::move(why);
    return false;
  }

 private:
  std::string wrong_;
};

/// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"key": "text"}}
class HeaderParser final : public Events {
 public:
  explicit HeaderParser(std::uint64_t data_bytes) : data_bytes_(data_bytes) {}
  Entries& entries() { return entries_; }

  bool start_object(std::size_t) override {
    if (at_ == At::start) return count() && go(At::names);
    if (at_ != At::names) return unexpected();
    entry_ = {};
    offsets_.clear();
    keys_.clear();
    return count() && go(in_metadata_ ? At::metadata : At::entry);
  }
  bool end_object() override {
    const bool closes_entry = at_ == At::entry;
    at_ = At::names;
    return !closes_entry || finish_entry();
  }
  bool key(string_t& key) override {
    if (at_ != At::names && !keys_.insert(key).second)
      return refuse(fmt::format("key \"{}\" appears twice", shown(key)));
    if (at_ == At::metadata)
      return keys_.size() <= metadata_max || refuse(fmt::format("__metadata__ has more than {} values", metadata_max));
    if (at_ == At::entry) {
      field_ = key == "dtype" ? Field::dtype : key == "shape" ? Field::shape : Field::offsets;
      return field_ != Field::offsets || key == "data_offsets" || of_tensor(not_exact);
    }
    in_metadata_ = key == "__metadata__";
    name_ = std::move(key);
    const bool again = in_metadata_ ? std::exchange(metadata_seen_, true) : entries_.contains(name_);
    return !again || refuse(fmt::format("key \"{}\" appears twice", shown(name_)));
  }
  bool string(string_t& value) override {
    if (at_ == At::metadata) return count();
    if (at_ != At::entry || field_ != Field::dtype) return unexpected();
    const auto known = parse_dtype(value);
    if (!known) return of_tensor(fmt::format("has dtype '{}', which is not known", shown(value)));
    entry_.dtype = *known;
    return count();
  }
  bool start_array(std::size_t) override {
    if (at_ != At::entry || field_ == Field::dtype) return unexpected();
    return count() && go(At::numbers);
  }
  bool end_array() override { return go(At::entry); }
  bool number_unsigned(number_unsigned_t value) override {
    if (at_ != At::numbers) return unexpected();
    std::vector<std::uint64_t>& numbers = field_ == Field::shape ? entry_.shape : offsets_;
    if (numbers.size() == (field_ == Field::shape ? shape_rank_max : 2)) return unexpected();
    numbers.push_back(value);
    return count();
  }

 private:
  enum class At : std::uint8_t { start, names, metadata, entry, numbers };
  enum class Field : std::uint8_t { dtype, shape, offsets };
  static constexpr const char* not_exact = "does not have exactly dtype, shape and data_offsets";

  bool go(At at) {
    at_ = at;
    return true;
  }
  bool count() { return ++values_ <= values_max || refuse(fmt::format("more than {} values", values_max)); }
  bool of_tensor(std::string_view what) { return refuse(fmt::format("tensor '{}' {}", shown(name_), what)); }
  bool unexpected() override {
    if (at_ == At::start) return refuse("is not an object");
    if (at_ == At::metadata) return refuse("__metadata__ has a value that is not a string");
    if (at_ == At::names) return in_metadata_ ? refuse("__metadata__ is not an object") : of_tensor(not_exact);
    return of_tensor(field_ == Field::dtype   ? "has no dtype"
                     : field_ == Field::shape ? "has no valid shape"
                                              : "has no valid data_offsets");
  }
  bool finish_entry() {
    if (keys_.size() != 3) return of_tensor(not_exact);
    if (offsets_.size() != 2) return of_tensor("has no valid data_offsets");
    for (const std::uint64_t dimension : entry_.shape)
      if (__builtin_mul_overflow(entry_.numel, dimension, &entry_.numel))
        return of_tensor("has a shape that overflows");
    if (__builtin_mul_overflow(entry_.numel, tensor_dtype_bytes(entry_.dtype), &entry_.bytes))
      return of_tensor("has a shape that overflows");
    const std::uint64_t begin = offsets_[0], end = offsets_[1];
    if (begin > end || end > data_bytes_)
      return of_tensor(fmt::format("lies at [{}, {}) of {} bytes of data", begin, end, data_bytes_));
    if (end - begin != entry_.bytes)
      return of_tensor(fmt::format("has {} bytes of data where dtype and shape ask for {}", end - begin, entry_.bytes));
    entry_.offset = begin;
    entry_.name = name_;
    entries_.emplace(std::move(name_), std::move(entry_));
    return true;
  }

  std::uint64_t data_bytes_, values_ = 0;
  At at_ = At::start;
  Field field_ = Field::dtype;
  bool in_metadata_ = false, metadata_seen_ = false;
  std::string name_;
  std::set<std::string> keys_;  ///< of the object within the header
  TensorEntry entry_;
  std::vector<std::uint64_t> offsets_;
  Entries entries_;
};

/// The weight_map of JSON that was looked at before: one value, no key twice.
class IndexParser final : public Events {
 public:
  Index& index() { return index_; }
  bool found() const { return found_; }

  bool start_object(std::size_t) override {
    if (depth_ == 1 && in_map_) found_ = true;
    if (depth_ == 2 && in_map_) return unexpected();
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (in_map_ && depth_ > 1) return unexpected();
    if (depth_ == 1) in_map_ = false;  // a weight_map that is a list is none
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) in_map_ = key == "weight_map";
    if (depth_ == 2 && in_map_) name_ = std::move(key);
    return true;
  }
  bool string(string_t& value) override {
    if (!in_map_ || depth_ != 2) return true;
    if (value.find('\0') != std::string::npos) return refuse("weight_map has a file name with a zero byte");
    const auto [at, is_new] = numbers_.emplace(value, static_cast<std::uint32_t>(index_.files.size()));
    if (is_new) index_.files.push_back(value);
    index_.tensors.emplace(std::move(name_), at->second);
    return true;
  }

 private:
  bool unexpected() override {
    return !in_map_ || depth_ != 2 || refuse(fmt::format("weight_map of '{}' is not a file name", shown(name_)));
  }

  int depth_ = 0;
  bool in_map_ = false, found_ = false;
  std::string name_;
  std::map<std::string, std::uint32_t> numbers_;
  Index index_;
};

/// In the order of their data they must follow each other from the first byte to the last.
Status check_layout(const Entries& entries, std::uint64_t data_bytes) {
  std::vector<const TensorEntry*> order;
  for (const auto& [name, entry] : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  std::uint64_t end = 0;
  for (const TensorEntry* entry : order) {
    if (entry->offset != end)
      return bad_request(fmt::format("data of tensor '{}' {}", shown(entry->name),
                                     entry->offset < end ? "overlaps another's" : "follow a gap"));
    end += entry->bytes;
  }
  if (end == data_bytes) return success();
  return bad_request(fmt::format("has {} bytes of data, its tensors fill {}", data_bytes, end));
}

}  // namespace

Result<Entries> parse_header(std::string_view text, std::uint64_t data_bytes) {
  HeaderParser parser(data_bytes);
  if (!Json::sax_parse(text.begin(), text.end(), &parser))
    return bad_request("header: " + (parser.wrong().empty() ? "it is not JSON" : parser.wrong()));
  SLUICE_TRY(check_layout(parser.entries(), data_bytes));
  return std::move(parser.entries());
}

Result<Index> parse_index(std::string_view text) {
  SLUICE_TRY(check_json(text, {.depth_max = 8, .values_max = index_values_max}));
  IndexParser parser;
  if (!Json::sax_parse(text.begin(), text.end(), &parser)) return bad_request(parser.wrong());
  if (!parser.found()) return bad_request("has no weight_map");
  return std::move(parser.index());
}

}  // namespace sluice::safetensors
