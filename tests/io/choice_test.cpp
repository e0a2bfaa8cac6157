// Which backend a queue gets where the kernel forbids some: in containers io_uring often is.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstddef>

#include "support.h"

namespace sluice {
namespace {

/// From here on these system calls of this process fail with EPERM.
bool forbid(std::initializer_list<unsigned> calls) {
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// What a queue says of itself in a process that lacks these calls, or "refused: ..." ; it must also work.
std::string chosen_without(std::initializer_list<unsigned> calls, IoBackendKind wanted, bool direct) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    std::string text = "no seccomp";
    if (forbid(calls)) {
      const ScratchDir dir;
      SwapFile swap = make_swap({dir.path()}, 1 << 20, direct);
      QueueOptions options;
      options.backend = wanted;
      options.files = swap.files();
      auto queue = make_queue(options);
      text = queue.ok() ? (*queue)->description() : "refused: " + queue.error().message;
      const AlignedBytes memory(1 << 16);
      if (queue.ok() && !transfer_now(**queue, IoOp::write, 0, 0, memory.span()).ok()) text = "does not work: " + text;
    }
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t n = read(ends[0], text.data(), text.size());
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

TEST(BackendChoice, FallsBackAndSaysWhy) {
  const std::string none = chosen_without({}, IoBackendKind::automatic, true);
  if (none == "no seccomp") GTEST_SKIP() << "this kernel has no seccomp filters";
  EXPECT_EQ(none.rfind("io_uring", 0), 0u) << none;
  const std::string no_uring = chosen_without({SYS_io_uring_setup}, IoBackendKind::automatic, true);
  EXPECT_EQ(no_uring.rfind("libaio", 0), 0u) << no_uring;
  EXPECT_NE(no_uring.find("io_uring is not available: Operation not permitted"), std::string::npos) << no_uring;
  const std::string buffered = chosen_without({SYS_io_uring_setup}, IoBackendKind::automatic, false);
  EXPECT_EQ(buffered.rfind("threads", 0), 0u) << buffered;
  EXPECT_NE(buffered.find("libaio would block"), std::string::npos) << buffered;
  const std::string neither = chosen_without({SYS_io_uring_setup, SYS_io_setup}, IoBackendKind::automatic, true);
  EXPECT_EQ(neither.rfind("threads", 0), 0u) << neither;
  EXPECT_NE(neither.find("libaio is not available: Operation not permitted"), std::string::npos) << neither;
}

TEST(BackendChoice, OneAskedForByNameIsNotReplaced) {
  if (chosen_without({}, IoBackendKind::automatic, true) == "no seccomp") GTEST_SKIP();
  for (const auto& [kind, call] :
       {std::pair(IoBackendKind::io_uring, SYS_io_uring_setup), std::pair(IoBackendKind::libaio, SYS_io_setup)}) {
    const std::string text = chosen_without({static_cast<unsigned>(call)}, kind, true);
    EXPECT_EQ(text.rfind("refused: ", 0), 0u) << text;
    EXPECT_NE(text.find("Operation not permitted"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace sluice
