// What the guard lets through is JSON for the parser that reads it.
#include <nlohmann/json.hpp>

#include "io/files/json_guard.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const sluice::Status status = sluice::check_json(text);
  if (!status.ok()) {
    sluice::fuzz::check_refusal(status.error());
    return 0;
  }
  SLUICE_CHECK(!nlohmann::json::parse(text, nullptr, false).is_discarded(), "accepted, and not JSON");
  return 0;
}
