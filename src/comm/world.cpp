#include "src/comm/world.h"

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
  const std::size_t colon = text.find(':');
  return Error{static_cast<ErrorCode>(std::stoi(text.substr(0, colon))), text.substr(colon + 1)};
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

Status leader_does(World& world, const std::function<Status()>& work) {
  return agree(world, world.leads() ? work() : success());
}

}  // namespace sluice
