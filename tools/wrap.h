// Texts of --help in lines that a terminal has room for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::tools {

/// Lines of at most `width` characters, broken at spaces; a word that is longer has a line of its own. Breaks that are
/// there stay.
std::string wrapped(std::string_view text, std::size_t width);

/// What stands below the options of a command. Lines that begin with a space are commands, and stay as they are; others
/// are wrapped, and one that was broken by hand because it was full goes on with the next.
std::string wrapped_footer(std::string_view text, std::size_t width);

}  // namespace sluice::tools
