// Errors as values. `Result<T>` is a value or an Error; `Status` is Result<void>.
//
// Where the world can fail (files, sizes, configs, other ranks) functions return Result. A broken internal invariant
// calls SLUICE_CHECK, which prints both values and aborts. Nothing on the hot path throws.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace sluice {

/// What a failure means to the caller, and the process exit status that follows from it.
enum class ErrorCode {
  bad_request,   ///< the input is wrong (option, file, size): exit status 2
  fault,         ///< the work failed (I/O error, non-finite step): exit status 1
  cancelled,     ///< asked to stop (Ctrl-C, SIGTERM): exit status 1
  damaged,       ///< data is not what was written: exit status 1, unless other data serves
  not_finite,    ///< a step's loss or gradient is NaN or infinite: exit status 1, unless the step can be skipped
  mispredicted,  ///< a step's updates have worked with a clip factor that was not its own: they, or all of it, are made
                 ///< again
};

struct Error {
  ErrorCode code = ErrorCode::fault;
  std::string message;  ///< one line: what, where, what to do

  /// The same error with `where` put in front of its message.
  Error in(const std::string& where) const { return {code, where + ": " + message}; }
};

inline Error bad_request(std::string message) { return {ErrorCode::bad_request, std::move(message)}; }
inline Error fault(std::string message) { return {ErrorCode::fault, std::move(message)}; }

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;
inline Status success() { return {}; }

}  // namespace sluice

/// Return the Error of `expr` from the calling function if it failed.
#define SLUICE_TRY(expr)                                                                   \
  do {                                                                                     \
    if (auto sluice_status_ = (expr); !sluice_status_.ok()) return sluice_status_.error(); \
  } while (false)

#define SLUICE_CONCAT_INNER(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_INNER(a, b)

/// Declare `target` as the value of `expr`, or return its Error.
#define SLUICE_ASSIGN(target, expr) SLUICE_ASSIGN_INNER(SLUICE_CONCAT(sluice_result_, __LINE__), target, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): tmp and target are declared here, where no parentheses may stand.
#define SLUICE_ASSIGN_INNER(tmp, target, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) return tmp.error();           \
  target = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)

/// Stop the program when an invariant of our own is broken: never for bad input.
#define SLUICE_CHECK(cond, ...)                                                                \
  do {                                                                                         \
    if (!(cond)) {                                                                             \
      std::fprintf(stderr, "sluice: internal error at %s:%d: %s ", __FILE__, __LINE__, #cond); \
      std::fprintf(stderr, "" __VA_ARGS__);                                                    \
      std::fputc('\n', stderr);                                                                \
      std::abort();                                                                            \
    }                                                                                          \
  } while (false)
