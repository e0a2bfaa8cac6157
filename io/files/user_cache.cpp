#include "io/files/user_cache.h"

#include <cstdlib>

namespace sluice {

Result<std::string> user_cache_directory() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/sluice";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/sluice";
  return bad_request("neither XDG_CACHE_HOME nor HOME is set");
}

}  // namespace sluice
