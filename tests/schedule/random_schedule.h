// Tiny models and random schedules: every choice that a schedule has, drawn from a seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/schedule/schedule.h"

namespace sluice::test {

inline ModelConfig tiny_config(Family family, bool tied, int layers = 2) {
  ModelConfig c;
  c.family = family;
  c.name = std::string(family == Family::llama ? "llama" : "gpt2") + (tied ? "-tied" : "-untied");
  c.tied = tied;
  c.layers = layers;
  c.kv_heads = family == Family::llama ? 2 : 4;
  c.ffn = family == Family::llama ? 128 : 256;
  c.max_positions = 128;
  return c;
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  int between(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool coin() { return between(0, 1) == 1; }
  template <class T, std::size_t n>
  T of(const T (&list)[n]) {
    return list[between(0, static_cast<int>(n) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

inline UnitChoice random_choice(Draw& draw) {
  const auto away = [&] { return draw.coin() ? Place::host : Place::nvme; };
  const auto anywhere = [&] { return static_cast<Place>(draw.between(0, 2)); };
  UnitChoice c;
  c.resident = draw.coin();
  c.held = draw.coin();
  c.second_copy = draw.coin();
  c.parameter_home = away();
  c.state_home = away();
  c.gradient = anywhere();
  c.accumulator = anywhere();
  c.saved = static_cast<Saved>(draw.between(0, 3));
  c.boundary = anywhere();
  c.blocks = anywhere();
  c.sweep = draw.coin() ? static_cast<std::uint8_t>(draw.between(0, 3)) : 0;
  c.update_on_device = draw.coin();
  return c;
}

/// Units of steps that wait for their norm, in a run whose other steps have these.
inline std::vector<UnitChoice> random_waiting(Draw& draw, const std::vector<UnitChoice>& units) {
  std::vector<UnitChoice> waiting;
  for (const UnitChoice& u : units) {
    UnitChoice& c = waiting.emplace_back(random_choice(draw));
    c.parameter_home = u.parameter_home;
    c.state_home = u.state_home;
    c.gradient = u.gradient;
    c.update_on_device = u.update_on_device;
    c.resident = false;
  }
  return waiting;
}

/// Choices differ from unit to unit half of the time.
inline Schedule random_schedule(Draw& draw, const Workload& w, int tile_log2_max = 18) {
  Schedule s;
  s.group = draw.between(1, w.micro_batches);
  s.update_ahead = draw.coin();
  s.keeps_gradients = !s.update_ahead && draw.coin();
  const bool mixes = !s.update_ahead && w.stages() == 1 && draw.coin();
  s.prefetch = draw.between(0, 3);
  s.activations_ahead = draw.between(1, 4);
  s.gradients_ahead = draw.coin();
  s.lag = draw.between(0, 1);
  s.tiles_in_flight = draw.between(1, 4);
  s.hold = draw.coin();
  s.tile_numel = 1ull << draw.between(12, tile_log2_max);
  const UnitChoice same = random_choice(draw);
  const bool differ = draw.coin();
  for (std::size_t u = 0; u < w.model->units.size(); ++u) s.units.push_back(differ ? random_choice(draw) : same);
  for (UnitChoice& c : s.units) c.late = mixes && draw.coin();
  if (std::ranges::all_of(s.units, &UnitChoice::late)) s.units.back().late = false;
  s.both_orders = !s.update_ahead && draw.coin();
  if (s.both_orders && !s.keeps_gradients && draw.coin()) s.waiting = random_waiting(draw, s.units);
  return s;
}

inline std::string describe(const Schedule& s) {
  std::string text = "group " + std::to_string(s.group) + (s.update_ahead ? " ahead" : " backward") +
                     (s.keeps_gradients ? " kept" : "") + (s.both_orders ? " both" : "") + " prefetch " +
                     std::to_string(s.prefetch) + " brings " + std::to_string(s.activations_ahead) +
                     (s.gradients_ahead ? " sums ahead" : "") + " lag " + std::to_string(s.lag) + " tiles " +
                     std::to_string(s.tiles_in_flight) + (s.hold ? " hold" : "") + " tile " +
                     std::to_string(s.tile_numel);
  const auto place = [](Place p) { return std::string(place_names[static_cast<std::size_t>(p)]); };
  std::vector<UnitChoice> all = s.units;
  all.insert(all.end(), s.waiting.begin(), s.waiting.end());
  for (const UnitChoice& c : all)
    text += " [" + std::string(c.resident ? "resident " : "") + (c.held ? "held " : "") +
            (c.second_copy ? "second " : "") + "p " + place(c.parameter_home) + " s " + place(c.state_home) + " g " +
            place(c.gradient) + " a " + place(c.accumulator) + " " + saved_names[static_cast<std::size_t>(c.saved)] +
            (c.core ? std::string("/") + saved_names[static_cast<std::size_t>(*c.core)] : "") + " x " +
            place(c.boundary) + " b " + place(c.blocks) + (c.sweep > 0 ? " sweep " + std::to_string(c.sweep) : "") +
            (c.update_on_device ? " u device" : "") + (c.late ? " late" : "") + "]";
  return text;
}

}  // namespace sluice::test
