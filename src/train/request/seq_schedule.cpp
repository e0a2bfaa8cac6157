#include "src/train/request/seq_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace sluice {
namespace {

constexpr const char* all_that_are_left = "*";
// Their products do not overflow.
constexpr std::int64_t sequence_max = std::int64_t{1} << 24;

bool read_count(std::string_view text, std::int64_t count_max, std::int64_t& count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() && count >= 1 && count <= count_max;
}

Error malformed(const std::string& text, std::string_view part) {
  return bad_request(fmt::format(
      "--seq-schedule {}: '{}' is not LENGTH:STEPS; give lengths and how many steps have them, like 512:1000,2048:*",
      text, part));
}

Error star_is_not_last(const std::string& text) {
  return bad_request(
      fmt::format("--seq-schedule {}: '*' takes all steps that are left, so that nothing may follow it; give it to the "
                  "last length alone",
                  text));
}

}  // namespace

Result<std::vector<SequencePhase>> parse_seq_schedule(const std::string& text, std::int64_t steps) {
  if (steps > scheduled_steps_max)
    return bad_request(fmt::format("--steps {}: with --seq-schedule give at most {}", steps, scheduled_steps_max));
  std::vector<SequencePhase> phases;
  std::int64_t next = 1;
  bool open = false;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    at = end + 1;
    const std::size_t colon = std::min(part.find(':'), part.size());
    SequencePhase phase{.first = next};
    std::int64_t count = 0;
    open = colon < part.size() && part.substr(colon + 1) == all_that_are_left;
    if (colon == part.size() || !read_count(part.substr(0, colon), sequence_max, phase.sequence) ||
        (!open && !read_count(part.substr(colon + 1), scheduled_steps_max, count)))
      return malformed(text, part);
    if (!phases.empty() && phases.back().sequence == phase.sequence)
      return bad_request(
          fmt::format("--seq-schedule {}: {} follows {}; make one of both", text, phase.sequence, phase.sequence));
    if (open && end < text.size()) return star_is_not_last(text);
    phase.last = open ? steps : next + count - 1;
    if (phase.last < phase.first)
      return bad_request(
          fmt::format("--seq-schedule {}: of --steps {} none is left for sequences of {}; give at "
                      "least --steps {}",
                      text, steps, phase.sequence, phase.first));
    next = phase.last + 1;
    phases.push_back(phase);
  }
  if (!open && steps > 0 && phases.back().last != steps)
    return bad_request(
        fmt::format("--seq-schedule {} has {} steps, and --steps is {}; leave --steps out, or give the "
                    "last length all steps that are left ({}:*)",
                    text, phases.back().last, steps, phases.back().sequence));
  return phases;
}

std::vector<SequencePhase> phases_of(const RunConfig& config) {
  if (config.seq_schedule.empty()) return {{config.sequence, 1, config.steps}};
  Result<std::vector<SequencePhase>> phases = parse_seq_schedule(config.seq_schedule, config.steps);
  SLUICE_CHECK(phases.ok(), "(%s)", phases.ok() ? "" : phases.error().message.c_str());
  return *std::move(phases);
}

SequencePhase phase_of(const RunConfig& config) { return phases_of(config)[static_cast<std::size_t>(config.phase)]; }

RunConfig at_phase(RunConfig config, std::size_t phase) {
  config.sequence = phases_of(config)[phase].sequence;
  config.phase = static_cast<int>(phase);
  return config;
}

std::int64_t border_sequence(const RunConfig& config) { return phases_of(config).front().sequence; }

std::uint64_t tokens_after(const RunConfig& config, std::int64_t step) {
  std::uint64_t of_row = 0;
  for (const SequencePhase& phase : phases_of(config))
    of_row += static_cast<std::uint64_t>(std::max<std::int64_t>(0, std::min(step, phase.last) - phase.first + 1) *
                                         phase.sequence);
  return of_row * static_cast<std::uint64_t>(config.batch);
}

std::uint64_t samples_before(const RunConfig& config) {
  const auto length = static_cast<std::uint64_t>(config.sequence);
  return (tokens_after(config, phase_of(config).first - 1) + length - 1) / length;
}

Status check_seq_schedule(const RunConfig& config) {
  if (config.seq_schedule.empty() && config.phase == 0) return success();
  SLUICE_ASSIGN(const std::vector<SequencePhase> phases, parse_seq_schedule(config.seq_schedule, config.steps));
  const auto at = static_cast<std::size_t>(config.phase);
  if (config.phase >= 0 && at < phases.size() && phases[at].sequence == config.sequence) return success();
  return bad_request(fmt::format("--seq-schedule {} does not have sequences of {} where the run is",
                                 config.seq_schedule, config.sequence));
}

}  // namespace sluice
