#include "src/train/run/metrics_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace sluice {

namespace {

constexpr std::size_t notes_max = 8;

struct Line {
  std::uint64_t number = 0;  ///< from 1, as editors count
  std::uint64_t end = 0;     ///< in bytes, its newline included
  std::int64_t step = 0;     ///< 0: it is not of a step
};

bool is_regular(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::int64_t step_of(const std::string& line) {
  long long step = 0;
  if (std::sscanf(line.c_str(), "{\"step\":%lld", &step) != 1 || step < 1 || line.back() != '}') return 0;
  return nlohmann::json::accept(line) ? step : 0;
}

/// What the line of a step says of whose it is; empty: nothing.
std::string run_of(const std::string& line) {
  const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
  const auto run = j.find("run");
  return run != j.end() && run->is_string() ? run->get<std::string>() : "";
}

/// Whether what has no end of a line is the beginning of one of a step, or zeros, as a power cut may leave it.
bool may_be_cut_off(const std::string& path) {
  constexpr std::string_view begin = "{\"step\":";
  std::string text;
  std::getline(std::ifstream(path, std::ios::binary), text);
  return begin.starts_with(std::string_view(text).substr(0, begin.size())) ||
         std::ranges::all_of(text, [](char c) { return c == '\0'; });
}

/// Calls `visit` with every complete line until it returns false.
void each_line(const std::string& path, const std::function<bool(const Line&, const std::string& text)>& visit) {
  std::ifstream in(path, std::ios::binary);
  Line line;
  for (std::string text; std::getline(in, text) && !in.eof();) {
    ++line.number;
    line.end += text.size() + 1;
    line.step = step_of(text);
    if (!visit(line, text)) return;
  }
}

/// What stays of a file: lines of ascending steps.
struct Survey {
  Line last;                  ///< that stays
  std::vector<Line> dropped;  ///< ascending
};

class Surveyor {
 public:
  explicit Surveyor(std::int64_t step) : step_(step) {}

  void add(const Line& line) {
    if (line.step == 0 || line.step <= accepted_) return drop(line);
    // Of two that do not follow each other the second is right where it follows what was before.
    if (waiting_.step >= line.step) drop(waiting_);
    if (waiting_.step > 0 && waiting_.step < line.step) accept();
    waiting_ = line;
  }
  Survey finish() {
    accept();
    std::ranges::sort(survey_.dropped, {}, &Line::number);
    return std::move(survey_);
  }

 private:
  void drop(const Line& line) { survey_.dropped.push_back(line); }
  void accept() {
    accepted_ = waiting_.step;
    if (waiting_.step <= step_ && waiting_.step > 0) survey_.last = waiting_;
  }

  std::int64_t step_, accepted_ = 0;
  Line waiting_;  ///< the newest, which the next one may yet refute
  Survey survey_;
};

std::vector<std::string> notes_of(const std::string& path, const std::vector<Line>& dropped) {
  std::vector<std::string> notes;
  for (const Line& line : dropped) {
    if (notes.size() == notes_max) {
      notes.push_back(path + ": and so are " + std::to_string(dropped.size() - notes_max) + " more lines");
      break;
    }
    notes.push_back(path + ": line " + std::to_string(line.number) +
                    (line.step == 0 ? " is not of a step, and dropped" : " is out of order, and dropped"));
  }
  return notes;
}

/// The file with what stays of it, and before each line those that are missing as far as they are known.
Status rewrite(const std::string& path, const Survey& survey, const RebuiltLine& rebuilt, ContinuedMetrics& metrics) {
  SLUICE_ASSIGN(AtomicFile file, AtomicFile::create(path));
  const auto append = [&file](std::string line) {
    line += '\n';
    return file.append(std::as_bytes(std::span(line)));
  };
  Status written;
  auto drop = survey.dropped.begin();
  std::int64_t before = 0, lost = 0;
  const auto fill = [&](std::int64_t until) -> Status {
    for (std::int64_t step = before + 1; step < until; ++step) {
      const std::optional<std::string> line = rebuilt(step);
      lost += line ? 0 : 1;
      if (line) SLUICE_TRY(append(*line));
    }
    return success();
  };
  each_line(path, [&](const Line& line, const std::string& text) {
    if (drop != survey.dropped.end() && drop->number == line.number) return ++drop, true;
    written = fill(line.step);
    if (written.ok()) written = append(text);
    before = line.step;
    return written.ok() && line.number < survey.last.number;
  });
  SLUICE_TRY(written);
  if (lost > 0) metrics.notes.push_back(path + ": the lines of " + std::to_string(lost) + " steps are lost");
  return file.publish();
}

}  // namespace

Status check_metrics(const std::string& path, const std::optional<MetricsOwner>& owner) {
  std::error_code ignored;
  if (!is_regular(path) || std::filesystem::file_size(path, ignored) == 0) return success();
  if (!owner)
    return bad_request("--metrics " + path +
                       " is not empty, and this is a new run; give another file, or remove it if it is not needed");
  bool any = false, good = false;
  std::optional<std::string> other;
  each_line(path, [&](const Line& line, const std::string& text) {
    any = true;
    if (line.step == 0) return true;
    good = true;
    const std::string run = run_of(text);
    if (run != owner->run && !(run.empty() && owner->unnamed)) other = run;
    return !other;
  });
  if (other)
    return bad_request("--metrics " + path + " has lines of another run" + (other->empty() ? "" : " (" + *other + ")") +
                       "; give another file, or remove it if it is not needed");
  if (good || (!any && may_be_cut_off(path))) return success();
  return bad_request(path + ": what it holds is not of a metrics file; move it away, or put back what was there");
}

std::string metrics_path(const RunConfig& config) {
  return config.metrics.empty() && !config.run.empty() ? config.run + "/metrics.jsonl" : config.metrics;
}

Status check_metrics(const RunConfig& config, const RunDirectory* directory) {
  const std::string path = metrics_path(config);
  if (directory == nullptr || !directory->run()) return check_metrics(path, std::nullopt);
  RunConfig before = directory->run()->config;
  before.run = config.run;
  return check_metrics(path, MetricsOwner{run_name(directory->run()->id), metrics_path(before) == path});
}

Result<ContinuedMetrics> continue_metrics(const std::string& path, std::int64_t step, const RebuiltLine& rebuilt) {
  ContinuedMetrics metrics;
  if (!is_regular(path)) {
    SLUICE_ASSIGN(metrics.writer, LineWriter::open(path, true));
    metrics.last_step = is_regular(path) ? 0 : step;
    return metrics;
  }
  Surveyor surveyor(step);
  each_line(path, [&](const Line& line, const std::string&) { return surveyor.add(line), true; });
  const Survey survey = surveyor.finish();
  metrics.notes = notes_of(path, survey.dropped);
  metrics.last_step = survey.last.step;
  if (!survey.dropped.empty() && survey.dropped.front().number < survey.last.number)
    SLUICE_TRY(rewrite(path, survey, rebuilt, metrics));
  else if (truncate(path.c_str(), static_cast<off_t>(survey.last.end)) != 0)
    return fault(path + ": can not be cut to the lines that hold: " + std::strerror(errno));
  SLUICE_ASSIGN(metrics.writer, LineWriter::open(path, true));
  return metrics;
}

}  // namespace sluice
