// The complete search against every placement there is, and on rectangles that are known to come apart.
#include "offload/plan/pack_complete.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>

#include "offload/plan/pack_fit.h"
#include "offload/plan/pack_rising.h"

namespace sluice::planning {
namespace {

using Offsets = std::vector<std::uint64_t>;

const SearchLimit ample{2'000'000'000, nullptr};

bool in_time(const Piece& a, const Piece& b) { return a.first <= b.last && b.first <= a.last; }

void expect_placement(const std::vector<Piece>& pieces, const Offsets& offsets, std::uint64_t height) {
  ASSERT_EQ(offsets.size(), pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ASSERT_GE(offsets[i], pieces[i].floor);
    ASSERT_LE(offsets[i] + pieces[i].bytes, height);
    for (std::size_t j = i + 1; j < pieces.size(); ++j)
      if (in_time(pieces[i], pieces[j])) {
        ASSERT_TRUE(offsets[i] + pieces[i].bytes <= offsets[j] || offsets[j] + pieces[j].bytes <= offsets[i])
            << i << " and " << j;
      }
  }
}

/// Lowest height of all turns in which pieces can be put on top of what is there: one of them is lowest.
std::uint64_t least_height(const std::vector<Piece>& pieces) {
  std::vector<std::size_t> turns(pieces.size());
  std::iota(turns.begin(), turns.end(), 0u);
  std::uint64_t least = ~0ull;
  do {
    Offsets ends(pieces.size());
    for (std::size_t n = 0; n < turns.size(); ++n) {
      std::uint64_t low = pieces[turns[n]].floor;
      for (std::size_t k = 0; k < n; ++k)
        if (in_time(pieces[turns[n]], pieces[turns[k]])) low = std::max(low, ends[turns[k]]);
      ends[turns[n]] = low + pieces[turns[n]].bytes;
    }
    least = std::min(least, *std::max_element(ends.begin(), ends.end()));
  } while (std::next_permutation(turns.begin(), turns.end()));
  return least;
}

/// A rectangle of `bytes` and `moments`, cut and cut again from end to end: pieces that fill it.
void cut(std::mt19937& random, std::uint32_t from, std::uint32_t to, std::uint64_t bytes, int cuts,
         std::vector<Piece>& into) {
  const bool across = bytes > 1 && (to - from < 2 || random() % 2 == 0);
  if (cuts == 0 || (bytes < 2 && to - from < 2)) {
    into.push_back({from, to - 1, bytes, false});
    return;
  }
  const int below = cuts / 2, above = cuts - 1 - below;
  if (across) {
    const std::uint64_t at = 1 + random() % (bytes - 1);
    cut(random, from, to, at, below, into);
    cut(random, from, to, bytes - at, above, into);
    return;
  }
  const std::uint32_t at = from + 1 + static_cast<std::uint32_t>(random() % (to - from - 1));
  cut(random, from, at, bytes, below, into);
  cut(random, at, to, bytes, above, into);
}

std::vector<Piece> pieces_of_a_rectangle(std::uint32_t seed, std::uint64_t bytes, int cuts) {
  std::mt19937 random(seed);
  std::vector<Piece> pieces;
  cut(random, 0, 1000, bytes, cuts, pieces);
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

/// By rising offset alone, in every order: found at the least height, and nowhere below it.
void expect_least_height_by_rising(const std::vector<Piece>& pieces, const Sections& sections, std::uint64_t least) {
  const Neighbours neighbours = neighbours_of(sections);
  for (const Order& order : orders) {
    const SearchEnd at = RisingSearch(sections, neighbours, least / sections.unit_bytes).pass(order, ample);
    ASSERT_EQ(at.kind, SearchEnd::Kind::found);
    expect_placement(pieces, at.offsets, least);
    const SearchEnd below = RisingSearch(sections, neighbours, (least - 1) / sections.unit_bytes).pass(order, ample);
    EXPECT_EQ(below.kind, SearchEnd::Kind::impossible);
  }
}

/// Returns whether it is above the most bytes alive.
bool expect_least_height(const std::vector<Piece>& pieces) {
  const std::uint64_t least = least_height(pieces), bound = max_live_bytes(pieces);
  const Sections sections = sections_of(pieces);
  const SearchEnd at = search_below(sections, least, ample), below = search_below(sections, least - 1, ample);
  EXPECT_EQ(at.kind, SearchEnd::Kind::found);
  expect_placement(pieces, at.offsets, least);
  EXPECT_EQ(below.kind, SearchEnd::Kind::impossible);
  expect_least_height_by_rising(pieces, sections, least);
  const Placement found = search_lower(pieces, bound, ample, place_greedily(pieces, bound, true));
  EXPECT_EQ(found.height, least);
  EXPECT_EQ(found.state, least == bound ? PackState::at_bound : PackState::minimal);
  expect_placement(pieces, found.offsets, least);
  return least > bound;
}

TEST(PackComplete, FindsTheLeastHeightOfEveryPlacement) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<Piece> pieces;
    const std::size_t count = 2 + round % 6;
    for (std::size_t i = 0; i < count; ++i) {
      const auto first = static_cast<std::uint32_t>(random() % 8);
      pieces.push_back({first, first + static_cast<std::uint32_t>(random() % 5), 1 + random() % 6, false});
      if (round % 3 == 0) pieces.back().floor = random() % 5;
    }
    expect_least_height(pieces);
  }
}

// Of few pieces hardly any have no placement at the bound.
TEST(PackComplete, ProvesThatNoneIsAtTheBound) {
  const auto made_of = [](const std::vector<std::array<std::uint32_t, 3>>& given) {
    std::vector<Piece> pieces;
    for (const auto& [first, last, bytes] : given) pieces.push_back({first, last, 4096ull * bytes, false});
    return pieces;
  };
  EXPECT_TRUE(
      expect_least_height(made_of({{4, 7, 1}, {2, 5, 1}, {6, 8, 2}, {8, 11, 2}, {0, 0, 2}, {2, 6, 1}, {0, 3, 2}})));
  EXPECT_TRUE(
      expect_least_height(made_of({{1, 3, 1}, {5, 8, 2}, {1, 4, 1}, {0, 1, 2}, {4, 5, 2}, {0, 0, 2}, {2, 4, 1}})));
  EXPECT_TRUE(expect_least_height(
      made_of({{1, 1, 5}, {6, 7, 6}, {4, 6, 3}, {7, 9, 6}, {5, 6, 1}, {4, 5, 5}, {0, 2, 6}, {2, 4, 4}})));
}

TEST(PackComplete, PutsRectanglesTogetherAgain) {
  for (const std::uint64_t bytes : {4096ull, 4ull << 30, 4ull << 40})
    for (std::uint32_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const std::vector<Piece> pieces = pieces_of_a_rectangle(seed, bytes, 60);
      ASSERT_EQ(max_live_bytes(pieces), bytes);
      const SearchEnd end = search_below(sections_of(pieces), bytes, ample);
      ASSERT_EQ(end.kind, SearchEnd::Kind::found);
      expect_placement(pieces, end.offsets, bytes);
    }
}

TEST(PackComplete, IsDeterministic) {
  const std::vector<Piece> pieces = pieces_of_a_rectangle(3, 1 << 20, 80);
  const SearchEnd a = search_below(sections_of(pieces), 1 << 20, ample),
                  b = search_below(sections_of(pieces), 1 << 20, ample);
  EXPECT_EQ(a.offsets, b.offsets);
  EXPECT_EQ(a.work, b.work);
}

TEST(PackComplete, SaysThatALimitEndedIt) {
  const std::vector<Piece> pieces = pieces_of_a_rectangle(1, 1 << 20, 400);
  const Sections sections = sections_of(pieces);
  const SearchEnd by_work = search_below(sections, 1 << 20, {50'000, nullptr});
  EXPECT_EQ(by_work.kind, SearchEnd::Kind::limit);
  EXPECT_GE(by_work.work, 50'000u);
  EXPECT_LT(by_work.work, 50'000'000u);
  int asked = 0;
  const SearchEnd by_clock = search_below(sections, 1 << 20, {ample.work, [&] { return ++asked > 3; }});
  EXPECT_EQ(by_clock.kind, SearchEnd::Kind::limit);
  const Placement greedy = place_greedily(pieces, 1 << 20, false);
  ASSERT_GT(greedy.height, 1u << 20);
  const Placement kept = search_lower(pieces, 1 << 20, {1, nullptr}, greedy);
  EXPECT_EQ(kept.height, greedy.height);
  EXPECT_EQ(kept.state, PackState::limited);
}

TEST(PackComplete, MorePiecesThanItTakesAreLeftToGreedyOrders) {
  std::vector<Piece> pieces;
  for (std::uint32_t i = 0; i <= most_searched_pieces; ++i) pieces.push_back({i, i + 1, 1 + i % 3, false});
  EXPECT_EQ(search_pieces(pieces, 1 << 20, ample).kind, SearchEnd::Kind::limit);
  EXPECT_EQ(search_pieces(pieces, 1, ample).kind, SearchEnd::Kind::impossible);
}

/// f on a thread whose stack has so many bytes: what runs over it ends the program.
void on_a_stack_of(std::size_t bytes, std::function<void()> f) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  const auto start = [](void* work) -> void* {
    (*static_cast<std::function<void()>*>(work))();
    return nullptr;
  };
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, start, &f), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

TEST(PackComplete, TakesNoMoreStackForMorePieces) {
  std::vector<Piece> pieces;
  for (std::uint32_t i = 0; i < 3000; ++i) pieces.push_back({0, i % 2, 1 + i, false});
  const std::uint64_t bytes = max_live_bytes(pieces);
  SearchEnd end;
  on_a_stack_of(256 << 10, [&] { end = search_below(sections_of(pieces), bytes, ample); });
  ASSERT_EQ(end.kind, SearchEnd::Kind::found);
  expect_placement(pieces, end.offsets, bytes);
}

TEST(PackComplete, ByRisingOffsetTakesAnOrdinaryStack) {
  std::vector<Piece> pieces;
  for (std::uint32_t i = 0; i < most_rising_pieces; ++i) pieces.push_back({0, i % 2, 1 + i, false});
  const std::uint64_t bytes = max_live_bytes(pieces);
  const Sections sections = sections_of(pieces);
  SearchEnd end;
  const Neighbours neighbours = neighbours_of(sections);
  on_a_stack_of(4 << 20, [&] { end = RisingSearch(sections, neighbours, bytes).pass(orders[0], ample); });
  ASSERT_EQ(end.kind, SearchEnd::Kind::found);
  expect_placement(pieces, end.offsets, bytes);
}

TEST(PackComplete, ByRisingOffsetPutsRectanglesTogetherAgain) {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<Piece> pieces = pieces_of_a_rectangle(seed, 4096, 30);
    const Sections sections = sections_of(pieces);
    SearchEnd end;
    const Neighbours neighbours = neighbours_of(sections);
    RisingSearch search(sections, neighbours, 4096);
    for (std::uint64_t work = 10'000; end.kind == SearchEnd::Kind::limit && work < 100'000'000; work *= 2)
      for (const Order& order : orders)
        if (end.kind == SearchEnd::Kind::limit) end = search.pass(order, {work, nullptr});
    ASSERT_EQ(end.kind, SearchEnd::Kind::found);
    expect_placement(pieces, end.offsets, 4096);
  }
}

TEST(PackComplete, LivesAreAsLongAsTheyAreGiven) {
  const std::vector<Piece> pieces{{0, 3, 8, false}, {2, 5, 12, false, 900}};
  const Sections s = sections_of(pieces);
  EXPECT_EQ(s.spans[0].life, 4u);
  EXPECT_EQ(s.spans[1].life, 900u);
}

TEST(PackComplete, SectionsHaveAllThatIsEverAlive) {
  const std::vector<Piece> pieces{{0, 3, 8, false}, {2, 5, 12, false}, {4, 9, 4, false}, {7, 7, 20, false}};
  const Sections s = sections_of(pieces);
  EXPECT_EQ(s.unit_bytes, 4u);
  EXPECT_EQ(s.units, (std::vector<std::uint64_t>{5, 4, 6}));
  EXPECT_EQ(s.spans[1].first, 0u);
  EXPECT_EQ(s.spans[1].last, 1u);
  EXPECT_EQ(s.spans[2].first, 1u);
  EXPECT_EQ(s.spans[2].last, 2u);
}

}  // namespace
}  // namespace sluice::planning
