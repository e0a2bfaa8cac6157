#include "src/comm/world.h"

#include <charconv>
#include <cstring>
#include <optional>

namespace sluice {
namespace {

/// "<code>:<message>", empty for success
std::string packed(const Status& status) {
  return status.ok() ? std::string() : std::to_string(static_cast<int>(status.error().code)) + ":" + status.error().message;
}

std::optional<Error> unpacked(const std::string& text) {
  if (text.empty()) return std::nullopt;
  int code = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), code);
  if (failed != std::errc() || end == text.data() + text.size() || *end != ':')
    return Error{ErrorCode::fault, "the processes of the run are not at the same place"};
  return Error{static_cast<ErrorCode>(code), std::string(end + 1, text.data() + text.size())};
}

}  // namespace

Status agree(World& world, const Status& own) {
  if (world.is_alone()) return own;
  const auto all = world.exchange(packed(own));
  if (!all.ok()) return own.ok() ? Status(all.error()) : own;
  std::optional<Error> worst;
  for (std::size_t process = 0; process < all->size(); ++process) {
    std::optional<Error> error = unpacked((*all)[process]);
    if (!error) continue;
    if (worst && (worst->code != ErrorCode::cancelled || error->code == ErrorCode::cancelled)) continue;
    worst = process == 0 ? *error : error->in("rank " + std::to_string(process * world.here().count));
  }
  return worst ? Status(*worst) : success();
}

Result<std::string> from_leader(World& world, std::string_view own) {
  if (world.is_alone()) return std::string(own);
  SLUICE_ASSIGN(std::vector<std::string> all, world.exchange(world.leads() ? own : std::string_view()));
  return std::move(all.front());
}

Status add_up(World& world, std::span<std::uint64_t> values) {
  if (world.is_alone()) return success();
  SLUICE_ASSIGN(const std::vector<std::string> all,
                world.exchange({reinterpret_cast<const char*>(values.data()), values.size_bytes()}));
  std::fill(values.begin(), values.end(), 0);
  for (const std::string& text : all) {
    if (text.size() != values.size_bytes()) return fault("ranks add up different numbers of values");
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint64_t value = 0;
      std::memcpy(&value, text.data() + i * sizeof value, sizeof value);
      values[i] += value;
    }
  }
  return success();
}

Status check_alike(World& world, const std::string& what, std::uint64_t own) {
  if (world.is_alone()) return success();
  SLUICE_ASSIGN(const std::vector<std::string> all,
                world.exchange({reinterpret_cast<const char*>(&own), sizeof own}));
  for (std::size_t process = 1; process < all.size(); ++process)
    if (all[process] != all.front())
      return bad_request("rank " + std::to_string(process * world.here().count) + " has other " + what +
                         " than rank 0: all ranks need the same");
  return success();
}

Status leader_does(World& world, const std::function<Status()>& work) {
  return agree(world, world.leads() ? work() : success());
}

}  // namespace sluice
