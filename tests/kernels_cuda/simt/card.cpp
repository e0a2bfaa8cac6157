#include "card.h"

#include <cstdlib>
#include <string>

namespace simt {
namespace {

std::uint64_t given(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv((std::string("SLUICE_MODEL_") + name).c_str());
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

Card& card() {
  static Card c{.devices = given("DEVICES", Card().devices),
                .driver = given("DRIVER", Card().driver),
                .capability = given("CAPABILITY", Card().capability),
                .nccl = given("NCCL", Card().nccl),
                .memory = given("MEMORY", Card().memory),
                .taken = given("TAKEN", Card().taken),
                .allocations = given("ALLOCATIONS", Card().allocations),
                .lockable = given("LOCKABLE", Card().lockable),
                .fails_at = given("FAILS_AT", Card().fails_at),
                .delay_seed = given("DELAY_SEED", Card().delay_seed)};
  return c;
}

}  // namespace simt

std::uint64_t simt_nccl_version() { return simt::card().nccl; }
