#include "tools/refusal.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "sluice/suggest.h"

namespace sluice::tools {
namespace {

/// What users of DeepSpeed, nanoGPT, transformers and fio type for ours; only where the command has that option.
struct Synonym {
  std::string_view theirs, ours;
};
constexpr std::array<Synonym, 19> synonyms{{{"learning-rate", "lr"},
                                            {"max-lr", "lr"},
                                            {"min-lr", "lr-end"},
                                            {"max-iters", "steps"},
                                            {"max-steps", "steps"},
                                            {"train-iters", "steps"},
                                            {"block-size", "seq"},
                                            {"context-length", "seq"},
                                            {"grad-clip", "clip"},
                                            {"gradient-clipping", "clip"},
                                            {"out-dir", "run"},
                                            {"output-dir", "run"},
                                            {"dataset", "data"},
                                            {"max-new-tokens", "tokens"},
                                            {"iodepth", "depth"},
                                            {"ioengine", "backend"},
                                            {"numjobs", "threads"},
                                            {"runtime", "seconds"},
                                            {"rw", "mode"}}};

/// The subcommand that was recognised last, and its name: "bench io" of `sluice bench io --bogus`.
const CLI::App& parsed_command(const CLI::App& app, std::string& name) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return *at;
}

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  return names;
}

/// The option that was meant by "--device_mem=1GiB"; none where nothing is near.
std::vector<std::string> meant_option(const CLI::App& command, std::string word) {
  word = word.substr(0, word.find('='));
  word.erase(0, word.find_first_not_of('-'));
  std::replace(word.begin(), word.end(), '_', '-');
  const std::vector<std::string> known = options_of(command);
  const auto has = [&](std::string_view name) { return std::find(known.begin(), known.end(), name) != known.end(); };
  std::vector<std::string> found;
  if (has(word)) found.push_back(word);
  for (const Synonym& s : synonyms)
    if (found.empty() && word == s.theirs && has(s.ours)) found.emplace_back(s.ours);
  if (found.empty()) found = nearest(word, known);
  // --batch-size is --batch, and --device-mem the beginning of --device-memory.
  const auto begins = [](const std::string& whole, const std::string& part) { return whole.starts_with(part); };
  std::string longest;
  for (const std::string& name : known)
    if (begins(word, name + "-") && name.size() > longest.size()) longest = name;
  if (found.empty() && !longest.empty()) found.push_back(longest);
  if (found.empty() && word.size() >= 3)
    for (const std::string& name : known)
      if (begins(name, word) && found.size() < 3) found.push_back(name);
  for (std::string& name : found) name.insert(0, "--");
  return found;
}

std::vector<std::string> commands_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

}  // namespace

std::string refusal(const CLI::App& app, const CLI::ParseError& error) {
  std::string self = "sluice";
  const CLI::App& command = parsed_command(app, self);
  // A misspelt word explains more than what is then missing.
  const std::vector<std::string> unknown = app.remaining(true);
  std::string line = error.what();
  const std::vector<std::string> commands = commands_of(command);
  if (!unknown.empty()) {
    const std::string& word = unknown.front();
    const bool is_option = word.starts_with('-');
    line = "'" + word + "' is not an option or command here" +
           did_you_mean(is_option ? meant_option(command, word) : nearest(word, commands));
    if (!is_option && commands.empty()) line += "; put a value of several words in quotes";
  } else if (!commands.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    line = "a subcommand is required: ";
    for (std::size_t i = 0; i < commands.size(); ++i)
      line += (i == 0 ? "" : i + 1 == commands.size() ? " or " : ", ") + commands[i];
  }
  // That it is a whole number was looked at before: "Could not convert: --batch = 4294967297".
  if (const std::size_t option = line.find("--"), value = line.find(" = ");
      dynamic_cast<const CLI::ConversionError*>(&error) != nullptr && option < value && value != std::string::npos &&
      line.find_first_not_of("-0123456789", value + 3) == std::string::npos)
    line = line.substr(option, value - option) + ": " + line.substr(value + 3) + " is too large a number";
  std::replace(line.begin(), line.end(), '\n', ' ');
  return self + ": " + line + " (see " + self + " --help)";
}

}  // namespace sluice::tools
