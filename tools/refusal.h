// What a command line that can not be understood is answered.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace sluice::tools {

/// One line: which command, what is wrong with which word, what may have been meant, and where help is.
std::string refusal(const CLI::App& app, const CLI::ParseError& error);

}  // namespace sluice::tools
