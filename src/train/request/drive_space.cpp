#include "src/train/request/drive_space.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <map>

namespace sluice {

Result<std::uint64_t> free_space(const std::vector<std::string>& directories) {
  struct Room {
    std::uint64_t bytes = 0, directories = 0;
  };
  std::map<dev_t, Room> rooms;
  for (const std::string& d : directories) {
    struct stat st {};
    struct statvfs fs {};
    if (stat(d.c_str(), &st) != 0 || statvfs(d.c_str(), &fs) != 0)
      return bad_request("--nvme " + d + ": cannot read its free space; give a directory on a mounted drive");
    Room& room = rooms[st.st_dev];
    room.bytes = fs.f_bavail * static_cast<std::uint64_t>(fs.f_frsize);
    ++room.directories;
  }
  std::uint64_t least = directories.empty() ? 0 : ~0ull;
  for (const auto& [device, room] : rooms) least = std::min(least, room.bytes / room.directories);
  return least * directories.size();
}

Result<std::uint64_t> measuring_bytes(const std::vector<std::string>& directories) {
  SLUICE_ASSIGN(const std::uint64_t space, free_space(directories));
  return std::clamp<std::uint64_t>(space / 4, 8u << 20, 2ull << 30) >> 20 << 20;
}

}  // namespace sluice
