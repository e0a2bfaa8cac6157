// A card to a test's liking, for as long as the test runs.
#pragma once

#include <card.h>
#include <gtest/gtest.h>

namespace sluice::test {

class CardTest : public testing::Test {
 protected:
  CardTest() { put_in({}); }
  ~CardTest() override { put_in({}); }
  /// As if the program had begun with it.
  static void put_in(const simt::Card& card) {
    simt::card() = card;
    simt::restart();
  }
};

}  // namespace sluice::test
