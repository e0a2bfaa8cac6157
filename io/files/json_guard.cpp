#include "io/files/json_guard.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "io/files/os_error.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::size_t shown_max = 160;

/// Sees every event of the parser and stops it at the first thing that is refused.
class Guard final : public nlohmann::json_sax<Json> {
 public:
  explicit Guard(const JsonLimits& limits) : limits_(limits) {}

  const std::string& wrong() const { return wrong_; }

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return deeper();
  }
  bool start_array(std::size_t) override { return deeper(); }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    return keys_.back().insert(key).second || refuse(fmt::format("key \"{}\" appears twice", key));
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return refuse(fmt::format("it is not JSON at byte {}", position));
  }

 private:
  bool refuse(std::string why) {
    if (!wrong_.empty()) return false;
    // Keys come from the text: no line breaks, and no more than a line can bear.
    for (char& c : why)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    wrong_ = why.size() > shown_max ? why.substr(0, shown_max) + "..." : std::move(why);
    return false;
  }
  bool value() {
    return ++values_ <= limits_.values_max || refuse(fmt::format("more than {} values", limits_.values_max));
  }
  bool deeper() {
    return value() &&
           (++depth_ <= limits_.depth_max || refuse(fmt::format("nested deeper than {} levels", limits_.depth_max)));
  }

  JsonLimits limits_;
  std::uint64_t values_ = 0, depth_ = 0;
  std::vector<std::set<std::string>> keys_;
  std::string wrong_;
};

}  // namespace

std::string shown(std::string_view text, std::size_t bytes_max) {
  std::string line(text.substr(0, bytes_max));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text.size() > bytes_max ? line + "..." : line;
}

Status check_json(std::string_view text, const JsonLimits& limits) {
  Guard guard(limits);
  if (Json::sax_parse(text.begin(), text.end(), &guard)) return success();
  return bad_request(guard.wrong().empty() ? "it is not JSON" : guard.wrong());
}

Result<std::string> read_json_file(const std::string& path, std::uint64_t bytes_max) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return bad_request("there is no " + path);
  if (!std::filesystem::is_regular_file(path, ignored)) return bad_request(path + " is not a regular file");
  if (std::filesystem::file_size(path, ignored) > bytes_max)
    return bad_request(fmt::format("{} is larger than {} bytes, which none of its kind is", path, bytes_max));
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad() || !in.is_open()) return os_error(fmt::format("can not read {}", path), errno);
  if (const Status sound = check_json(text); !sound.ok()) return sound.error().in(path);
  return text;
}

}  // namespace sluice
