// Whether bytes are a text at all: programs, weights and archives have none of what a model could learn from.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "sluice/status.h"

namespace sluice {

/// Of a text so much is looked at.
constexpr std::size_t checked_bytes = 1u << 16;

/// `begin`: the first bytes of what `name` names, unpacked. bad_request, saying what it looks like, for UTF-16 and
/// UTF-32 with their marks, where there is a byte 0, and where there is no UTF-8 and one byte in fifty is a control
/// character that no text has. A text in UTF-8, Latin-1 or another encoding of bytes passes.
Status check_text(std::string_view begin, const std::string& name);
/// The same of a file, which may be packed as TextStream knows it.
Status check_text_file(const std::string& path);

}  // namespace sluice
