// What a model is evaluated on: windows of tokens under a name. One set may be held out of the training data, others
// have files of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/tokens/token_file.h"
#include "src/train/data/batches.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// The set that is held out of the training data.
inline constexpr const char* held_out_name = "held_out";

/// --eval-data [NAME=]FILE.
struct NamedData {
  std::string name, path;
};
/// What is before the first "=" is the name, if there is something and no slash in it; else it is the file's, without
/// its endings. bad_request for names that are no text.
Result<NamedData> parse_eval_data(const std::string& text);
/// All of config.eval_data. bad_request when two sets have one name; `held_out`: one is held out of the training data.
Result<std::vector<NamedData>> eval_data_of(const RunConfig& config, bool held_out);

/// Windows that an evaluation goes through: config.eval_batches of config.batch, or all where that is 0; no more than
/// there are.
std::uint64_t eval_windows(const RunConfig& config, std::uint64_t there_are);

struct EvalSet {
  std::string name, path;
  std::unique_ptr<const TokenFile> file;  ///< null: the windows are of the training data
  Windows windows;                        ///< those that an evaluation goes through
  std::uint64_t windows_in_all = 0;
  const TokenFile& tokens() const { return windows.tokens(); }
};

/// What `batches`, of config.data, hold out, and behind it the sets of config.eval_data, opened as open_data opens
/// config.data. The file of `batches` outlives them. bad_request, naming the set, for what open_data refuses, for files
/// that do not say where documents end where `documents` are kept apart, and where no token counts in the loss.
Result<std::vector<EvalSet>> open_eval_sets(const RunConfig& config, const ModelConfig& model, bool documents,
                                            const Batches& batches,
                                            const std::function<void(const std::string&)>& note = {});

/// What is known of that without tokenizing a text, before anything is measured. `model`: of config.model. `watch`
/// hears how much of a file has been read, where its tokens have to be looked at.
Status check_eval_data(const RunConfig& config, const ModelConfig& model,
                       const std::function<void(const std::string& path, double fraction)>& watch = {});

/// One line: what is held out, and what else there is.
std::string shown(const RunConfig& config, const Batches& batches, const std::vector<EvalSet>& sets);

}  // namespace sluice
