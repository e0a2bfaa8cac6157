#include "tools/report_curves.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/train/data/eval_sets.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t line_bytes_max = 1u << 20, last_steps = 100;

double number_of(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : std::nan("");
}

/// Every so many, and the last one.
template <class T>
std::vector<T> thinned(const std::vector<T>& all) {
  const std::size_t every = (all.size() + curve_points - 1) / curve_points;
  if (every <= 1) return all;
  std::vector<T> kept;
  for (std::size_t i = every - 1; i < all.size(); i += every) kept.push_back(all[i]);
  if (all.size() % every != 0) kept.push_back(all.back());
  return kept;
}

void add_evaluations(const nlohmann::json& line, std::int64_t step, RunCurves& curves) {
  const auto sets = line.find("eval");
  if (sets != line.end() && sets->is_object()) {
    for (const auto& [set, loss] : sets->items())
      if (loss.is_number()) curves.eval[set == held_out_name ? "" : set].emplace_back(step, loss.get<double>());
  } else if (const double loss = number_of(line, "eval_loss"); std::isfinite(loss)) {
    curves.eval[""].emplace_back(step, loss);
  }
}

void add_line(const nlohmann::json& line, std::int64_t step, RunCurves& curves) {
  constexpr std::array<const char*, RunCurves::kinds> keys{"loss", "tokens_per_second", "step_seconds", "lr",
                                                           "grad_norm"};
  const auto is_true = [&](const char* key) { return line.contains(key) && line[key] == true; };
  const bool is_skipped = is_true("skipped");
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const double value = number_of(line, keys[k]);
    // A step that was skipped, or whose duration is not known, has no rate.
    const bool is_rate = k == RunCurves::tokens_per_second || k == RunCurves::step_seconds;
    if (std::isfinite(value) && (value > 0 || !is_rate) && (!is_skipped || k == RunCurves::lr))
      curves.curves[k].add(step, value);
  }
  ++curves.lines;
  curves.last_step = step;
  if (is_skipped) curves.skipped.push_back(step);
  if (is_true("repaired")) ++curves.repaired;
  if (line.contains("saved_step")) curves.saved.push_back(step);
  if (const double loss = number_of(line, "loss"); std::isfinite(loss)) curves.last_loss = loss;
  if (const double seconds = number_of(line, "step_seconds"); seconds > 0) {
    ++curves.timed_steps;
    curves.timed_seconds += seconds;
    if (const double bytes = number_of(line, "nvme_write_bytes"); bytes > 0 && bytes < 1e18)
      curves.nvme_write_bytes += static_cast<std::uint64_t>(bytes);
    curves.last_seconds[step] = seconds;
    if (curves.last_seconds.size() > last_steps) curves.last_seconds.erase(curves.last_seconds.begin());
  }
  if (const double tokens = number_of(line, "tokens"); tokens > 0 && tokens < 1e18)
    curves.tokens = static_cast<std::uint64_t>(tokens);
  add_evaluations(line, step, curves);
}

}  // namespace

void Curve::add(std::int64_t step, double value) {
  if (points_.empty() || points_.back().lines == lines_of_point_) {
    points_.push_back({step, 0, value, value, 0});
    if (points_.size() > 2 * curve_points) {  // two become one
      std::vector<Point> halved;
      for (std::size_t i = 0; i + 1 < points_.size(); i += 2) {
        const Point &a = points_[i], &b = points_[i + 1];
        halved.push_back(
            {b.step, a.sum + b.sum, std::min(a.least, b.least), std::max(a.most, b.most), a.lines + b.lines});
      }
      if (points_.size() % 2 == 1) halved.push_back(points_.back());
      points_ = std::move(halved);
      lines_of_point_ *= 2;
    }
  }
  Point& last = points_.back();
  last.step = step;
  last.sum += value;
  last.least = std::min(last.least, value);
  last.most = std::max(last.most, value);
  ++last.lines;
}

Json Curve::json() const {
  Json all = Json::array();
  for (const Point& p : points_) all.push_back({p.step, p.sum / static_cast<double>(p.lines), p.least, p.most});
  return all;
}

Json RunCurves::json() const {
  Json sets = Json::object();
  for (const auto& [set, losses] : eval) sets[set] = thinned(losses);
  return {{"loss", curves[loss].json()},
          {"tokens_per_second", curves[tokens_per_second].json()},
          {"step_seconds", curves[step_seconds].json()},
          {"lr", curves[lr].json()},
          {"grad_norm", curves[grad_norm].json()},
          {"eval", sets},
          {"skipped", thinned(skipped)},
          {"saved", thinned(saved)}};
}

Result<RunCurves> read_curves(const std::string& path, const std::string& run_name) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))
    return bad_request(path + ", the metrics of the run, is not a file; put it back to have curves");
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) return bad_request(path + " can not be read: " + std::strerror(errno));
  RunCurves curves;
  for (std::string text; std::getline(in, text);) {
    const nlohmann::json line =
        text.size() > line_bytes_max ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
    const double step = line.is_object() ? number_of(line, "step") : std::nan("");
    const bool is_other = line.is_object() && line.contains("run") && line["run"] != run_name;
    if (!(step >= 1 && step < 1e15) || is_other || static_cast<std::int64_t>(step) <= curves.last_step)
      ++curves.others;
    else
      add_line(line, static_cast<std::int64_t>(step), curves);
  }
  return curves;
}

}  // namespace sluice::tools
