// Loaded ahead of a program (LD_PRELOAD) it makes one of its calls fail, or kills it there: SLUICE_TEST_FAILING_CALL is
// "NTH ERROR WITHIN NAME...", where ERROR is a number or "kill".
#include <cstdlib>
#include <memory>
#include <sstream>

#include "tests/system_calls/system_calls.h"

namespace sluice::test {
namespace {

SystemCalls* const calls = []() -> SystemCalls* {
  const char* const text = std::getenv("SLUICE_TEST_FAILING_CALL");
  if (text == nullptr) return nullptr;
  std::istringstream words(text);
  FailingCall failing;
  std::string error;
  words >> failing.nth >> error >> failing.within;
  failing.error = error == "kill" ? FailingCall::kills : std::atoi(error.c_str());
  for (std::string name; words >> name;) failing.names.push_back(name);
  return new SystemCalls(std::move(failing));  // until the process ends
}();

}  // namespace
}  // namespace sluice::test
