// Commands, their options, and what these accept: what this program needs of CLI11. That takes g++ seconds to parse
// and to generate, so only command_line.cpp and refusal.cpp include it. Functions do what CLI11's of their names do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace sluice::tools {

/// A rule for values.
struct Validator {
  std::function<std::string(std::string&)> refusal;  ///< empty if the value will do; a transform may change it
  std::string shown;                                 ///< in the help, behind the option's type

  Validator unshown() const { return {refusal, ""}; }
};

Validator range(int least, int most);
Validator range(std::uint64_t least, std::uint64_t most);
Validator range(double least, double most);

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* required();
  Option* check(Validator validator);
  Option* transform(Validator validator);  ///< before what the option already has
  Option* group(std::string_view name);
  Option* description(std::string_view text);
  Option* type_name(std::string_view name);
  Option* capture_default_str();
  Option* default_str(std::string_view text);
  Option* delimiter(char delimiter);  ///< between values; Command::parse() refuses empty ones
  Option* expected(int values);
  Option* allow_extra_args(bool allow);
  Option* take_all();
  Option* excludes(const Option* other);
  Option* needs(const Option* other);

  std::size_t count() const;  ///< of the values that were given
  std::string get_name() const;
  std::string get_type_name() const;  ///< with what validators show, behind a colon
  bool takes_values() const;          ///< a flag does not

 private:
  friend class Command;
  CLI::Option* option_;
  char delimiter_ = '\0';
};

/// What a command line came to.
struct Parsed {
  enum class End { callback_ran, text_was_asked_for, refused };
  End end = End::callback_ran;
  std::string text;  ///< the help or the version that was asked for, or the refusal: whole lines
};

/// The program, or one of its subcommands. Its address stays, and so do those of its options.
class Command {
 public:
  Command(std::string_view description, std::string_view name);
  explicit Command(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command* add_subcommand(std::string_view name, std::string_view description);
  void require_subcommand(int number);
  void set_version_flag(std::string_view name, std::string_view version);
  void footer(std::string_view text);
  void callback(std::function<void()> function);

  /// For the types that command_line.cpp names.
  template <class T>
  Option* add_option(std::string_view name, T& value, std::string_view description);
  /// Takes the number, which a transform makes of a word.
  template <class T>
  requires std::is_enum_v<T> Option* add_option(std::string_view name, T& value, std::string_view description) {
    return add_number(
        name, [&value](int number) { value = static_cast<T>(number); }, description);
  }
  Option* add_option_function(std::string_view name, const std::function<void(const std::string&)>& function,
                              std::string_view description);
  /// The function is given all values at once.
  Option* add_option_function(std::string_view name,
                              const std::function<void(const std::vector<std::string>&)>& function,
                              std::string_view description);
  Option* add_flag(std::string_view name, bool& value, std::string_view description);

  Option* get_option(std::string_view name);  ///< one that was added
  std::size_t count(std::string_view option) const;
  std::list<Option>& options() { return options_; }  ///< in the order in which they were added; not --help
  const std::list<Option>& options() const { return options_; }
  std::list<Command>& subcommands() { return subcommands_; }

  Parsed parse(int argc, const char* const* argv);

 private:
  Option* add_number(std::string_view name, const std::function<void(int)>& function, std::string_view description);
  /// The refusal of a list with an empty part, which CLI11 leaves out; empty if there is none. `words`: behind its
  /// name.
  std::string torn_list(const std::string& name, std::span<const char* const> words) const;
  Option* keep(CLI::Option* option) { return &options_.emplace_back(option); }

  std::shared_ptr<CLI::App> app_;
  std::list<Option> options_;
  std::list<Command> subcommands_;
};

/// parse() ends with a refusal; for functions of options and callbacks.
[[noreturn]] void refuse_value(std::string_view option, std::string_view why);
[[noreturn]] void refuse_without(std::string_view what);

}  // namespace sluice::tools
