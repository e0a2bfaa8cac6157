// What can be told of --data before it is needed.
#pragma once

#include <cstdint>
#include <functional>

#include "src/model/model.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// Nothing is written. bad_request as open_data and Batches::create refuse, where that is soon known: of a token file
/// from its header, of a text from its first megabyte. `windows_min`: of so many sequences the data must have room.
Status check_data_begins(const RunConfig& config, const ModelConfig& model, std::uint64_t windows_min);
/// A token file has documents of the lengths that the phase of --seq-schedule takes. bad_request. Nothing is looked at
/// of texts.
Status check_documents(const RunConfig& config, const ModelConfig& model);
/// All tokens of a token file are the model's: where the file does not say it, all of it is read, so that no step of a
/// run finds out. bad_request. Nothing is looked at of texts. `watch`: as TokenFile::check_tokens takes it.
Status check_tokens(const RunConfig& config, const ModelConfig& model, const std::function<void(double)>& watch = {});

}  // namespace sluice
