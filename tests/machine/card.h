// A card to a test's liking, for as long as the test runs.
#pragma once

#include <card.h>
#include <gtest/gtest.h>

namespace sluice::test {

/// As if the program had begun with it.
inline void put_in(const simt::Card& card) {
  simt::card() = card;
  simt::restart();
}

class CardTest : public testing::Test {
 protected:
  CardTest() { put_in({}); }
  ~CardTest() override { put_in({}); }
};

}  // namespace sluice::test
