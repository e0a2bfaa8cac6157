// Which part of the data training leaves out, for evaluation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/tokens/token_file.h"
#include "sluice/status.h"

namespace sluice {

/// Where the windows of training end, and where those begin that are held out.
struct HeldOut {
  std::uint64_t training = 0;             ///< windows, from the file's first token on
  std::uint64_t begin = 0;                ///< the first token that is held out
  std::uint64_t windows = 0;              ///< that are held out, from there to the file's end
  std::optional<std::uint64_t> document;  ///< that begins there; none: the border is only one of windows
};

/// The end of the file is held out: about `share` of its windows, one at least; none of them for a share of 0. `share`
/// is from 0 to 0.5; where it is missing the last twentieth is held out window by window, as runs of early versions
/// have it. Else the border is the one of documents that lies nearest, with training windows before it and held-out
/// windows from it on, if those are not most of the file. Where the file does not know its documents, or is one, or
/// none of their borders serves, it is a window's. bad_request when there are too few windows.
Result<HeldOut> hold_out(const TokenFile& tokens, std::int64_t sequence, std::optional<double> share);

/// The same border for windows of another length. bad_request when there is no room for one on each side.
Result<HeldOut> held_out_at(const HeldOut& held_out, const TokenFile& tokens, std::int64_t sequence);

/// "the last 1,234 of 24,680 windows of c4.tokens (5%, from document 812 on)". Not for those that hold out nothing.
std::string shown(const HeldOut& held_out, const TokenFile& tokens, const std::string& path);

/// 1234567 as "1,234,567".
std::string grouped(std::uint64_t number);

}  // namespace sluice
