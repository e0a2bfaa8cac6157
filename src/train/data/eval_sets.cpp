#include "src/train/data/eval_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "src/train/request/check_data.h"

namespace sluice {
namespace {

/// "val" of "data/val.jsonl.zst".
std::string name_of_file(const std::string& path) {
  std::filesystem::path name = std::filesystem::path(path).filename();
  if (name.extension() == ".zst" || name.extension() == ".gz") name = name.stem();
  // A name ends where a '=' is.
  std::string stem = name.stem().string();
  std::ranges::replace(stem, '=', '-');
  return stem;
}

/// Whether any of its tokens counts: the planes of windows until one does.
Result<bool> any_counts(const Windows& windows, std::int64_t sequence) {
  if (windows.all_count()) return true;
  const auto length = static_cast<std::uint64_t>(sequence);
  std::vector<std::int32_t> planes(3 * length);
  const BatchRow row = BatchRow::of(planes, 0, 1, length);
  for (std::uint64_t i = 0; i < windows.count(); ++i) {
    SLUICE_TRY(windows.read(i, row));
    if (row.targets_that_count() > 0) return true;
  }
  return false;
}

Error in_set(const Error& error, const NamedData& data) { return error.in("--eval-data " + data.name); }

Result<EvalSet> open_set(const RunConfig& config, const ModelConfig& model, bool documents, const NamedData& data,
                         const std::function<void(const std::string&)>& note) {
  RunConfig c = config;
  c.data = data.path;
  c.document_mask.reset();
  SLUICE_ASSIGN(TokenFile file, open_data(c, model, note));
  // A file of ours without a table is one document.
  if (documents && !file.documents_known() && file.format() != TokenFormat::sluice)
    return bad_request(
        fmt::format("{}: documents are kept apart in this run, and a {} file does not say where they "
                    "end; make one that does of the texts (sluice data tokenize)",
                    data.path, format_name(file.format())));
  EvalSet set{data.name, data.path, std::make_unique<const TokenFile>(std::move(file)), {}, 0};
  const Windows all(*set.file, config.sequence, documents);
  set.windows_in_all = all.count();
  set.windows = all.first(eval_windows(config, all.count()));
  SLUICE_ASSIGN(const bool counts, any_counts(set.windows, config.sequence));
  if (!counts) return bad_request(data.path + ": none of its tokens counts in the loss");
  return set;
}

}  // namespace

Result<NamedData> parse_eval_data(const std::string& text) {
  const std::size_t equals = text.find('=');
  const bool named = equals != std::string::npos && text.find('/') > equals;
  NamedData data{named ? text.substr(0, equals) : name_of_file(text), named ? text.substr(equals + 1) : text};
  const bool printable = std::ranges::none_of(data.name, [](unsigned char c) { return c < ' ' || c == 0x7f; });
  if (data.name.empty() || data.path.empty() || !printable)
    return bad_request("--eval-data " + text + ": give a file, or NAME=FILE");
  return data;
}

Result<std::vector<NamedData>> eval_data_of(const RunConfig& config, bool held_out) {
  std::vector<NamedData> all;
  std::set<std::string> names;
  if (held_out) names.insert(held_out_name);
  for (const std::string& text : config.eval_data) {
    SLUICE_ASSIGN(NamedData data, parse_eval_data(text));
    if (!names.insert(data.name).second)
      return bad_request(
          fmt::format("--eval-data {}: there is another set '{}'; give one of them another name, as {}-2={}", text,
                      data.name, data.name, data.path));
    all.push_back(std::move(data));
  }
  return all;
}

std::uint64_t eval_windows(const RunConfig& config, std::uint64_t there_are) {
  if (config.eval_batches == 0) return there_are;
  return std::min(there_are,
                  static_cast<std::uint64_t>(config.eval_batches) * static_cast<std::uint64_t>(config.batch));
}

Result<std::vector<EvalSet>> open_eval_sets(const RunConfig& config, const ModelConfig& model, bool documents,
                                            const Batches& batches,
                                            const std::function<void(const std::string&)>& note) {
  const Windows& held_out = batches.held_out_windows();
  SLUICE_ASSIGN(const std::vector<NamedData> all, eval_data_of(config, held_out.count() > 0));
  std::vector<EvalSet> sets;
  if (held_out.count() > 0) {
    EvalSet set{held_out_name, config.data, nullptr, {}, held_out.count()};
    set.windows = held_out.first(eval_windows(config, held_out.count()));
    SLUICE_ASSIGN(const bool counts, any_counts(set.windows, config.sequence));
    // Runs of early versions go on all the same.
    if (!counts && config.eval_split)
      return bad_request(config.data +
                         ": none of the tokens that are held out counts in the loss; give another "
                         "--eval-split, or --eval-data");
    sets.push_back(std::move(set));
  }
  for (const NamedData& data : all) {
    Result<EvalSet> set = open_set(config, model, documents, data, note);
    if (!set.ok()) return in_set(set.error(), data);
    sets.push_back(*std::move(set));
  }
  return sets;
}

Status check_eval_data(const RunConfig& config, const ModelConfig& model,
                       const std::function<void(const std::string&, double)>& watch) {
  SLUICE_ASSIGN(const std::vector<NamedData> all, eval_data_of(config, config.eval_split.value_or(1) > 0));
  for (const NamedData& data : all) {
    const Result<std::optional<TokenFormat>> format = recognize_tokens(data.path);
    if (!format.ok()) return in_set(format.error(), data);
    if (!*format) {
      RunConfig of_text = config;
      of_text.data = data.path;
      if (const Status begins = check_data_begins(of_text, model, 1); !begins.ok()) return in_set(begins.error(), data);
      continue;
    }
    const Result<EvalSet> set = open_set(config, model, config.document_mask.value_or(false), data, {});
    if (!set.ok()) return in_set(set.error(), data);
    const auto of_file = [&](double fraction) { watch(data.path, fraction); };
    if (const Status known = set->file->check_tokens(watch ? of_file : std::function<void(double)>()); !known.ok())
      return in_set(known.error(), data);
  }
  return success();
}

std::string shown(const RunConfig& config, const Batches& batches, const std::vector<EvalSet>& sets) {
  const auto part = [](const EvalSet& set) {
    return set.windows.count() < set.windows_in_all ? "the first " + grouped(set.windows.count()) + " of them each time"
                                                    : std::string("all of them each time");
  };
  const HeldOut& held_out = batches.held_out();
  std::string text = held_out.windows > 0 ? "held out for evaluation: " + shown(held_out, batches.tokens(), config.data)
                                          : "nothing of the data is held out for evaluation";
  for (const EvalSet& set : sets) {
    if (set.file)
      text += fmt::format("; {}: {} windows of {}", set.name, grouped(set.windows_in_all),
                          std::filesystem::path(set.path).filename().string());
    text += ", " + part(set);
  }
  return text + "; --eval-split, --eval-data, --eval-batches";
}

}  // namespace sluice
