#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

// Saves what a call must not change and goes on where the other stack was left.
extern "C" void simt_switch(void** save, void* to);
asm(R"(
.text
.globl simt_switch
.type simt_switch, @function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch, .-simt_switch
)");

namespace simt {
namespace {

constexpr unsigned warp_threads = 32, most_threads = 1024;
constexpr std::size_t stack_bytes = 64 << 10;

/// Where threads wait until the counter moves on.
struct Meeting {
  std::uint64_t turn = 0;
  unsigned arrived = 0;
};

/// What a lane hands to its warp in one piece: the operands of a tensor core instruction are 24 bytes.
struct Blob {
  std::uint32_t word[6] = {};
};

struct Warp {
  Meeting meeting;
  std::uint64_t slot[2][warp_threads] = {};
  Blob blob[2][warp_threads] = {};
  double product[2][16][8] = {};
};

struct Copy {
  void* to;
  const void* from;
  unsigned bytes, valid_bytes;
  std::uint64_t group;
};

struct Thread {
  std::unique_ptr<std::byte[]> stack{new std::byte[stack_bytes]};
  void* sp = nullptr;
  void* asan = nullptr;
  dim3 index;
  unsigned number = 0;
  const Meeting* waits_for = nullptr;
  std::uint64_t seen = 0;
  std::vector<Copy> copies;  ///< on their way, oldest first
  std::uint64_t group = 0;   ///< that the next copy belongs to
  bool done = true;
  bool runnable() const { return !done && (waits_for == nullptr || waits_for->turn != seen); }
};

struct Machine {
  std::vector<Thread> threads{most_threads};
  std::vector<Warp> warps{most_threads / warp_threads};
  Meeting barrier;
  bool any[2] = {};
  unsigned count = 0;
  const std::function<void()>* body = nullptr;
  Thread* running = nullptr;
  void* scheduler = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  void* scheduler_asan = nullptr;
  std::uint64_t blocks = 0;
  std::vector<uint4> shared;
};

Machine& machine() {
  static Machine m;
  return m;
}

[[noreturn]] void die(const char* what) {
  const Machine& m = machine();
  std::fprintf(stderr, "simt: %s; block (%u, %u) of (%u, %u), %u threads\n", what, blockIdx.x, blockIdx.y, gridDim.x,
               gridDim.y, m.count);
  std::abort();
}

void to_scheduler(bool for_good) {
  Machine& m = machine();
  Thread& self = *m.running;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &self.asan, m.scheduler_stack, m.scheduler_stack_bytes);
#endif
  static_cast<void>(for_good);
  simt_switch(&self.sp, m.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self.asan, &m.scheduler_stack, &m.scheduler_stack_bytes);
#endif
}

void enter() {
  Machine& m = machine();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack, &m.scheduler_stack_bytes);
#endif
  (*m.body)();
  m.running->done = true;
  to_scheduler(true);
  std::abort();
}

void prepare(Thread& t) {
  auto* top = reinterpret_cast<std::uintptr_t*>((reinterpret_cast<std::uintptr_t>(t.stack.get()) + stack_bytes) &
                                                ~std::uintptr_t{15});
  *(top - 2) = reinterpret_cast<std::uintptr_t>(&enter);  // so aligned as after a call
  for (int i = 3; i <= 8; ++i) *(top - i) = 0;
  t.sp = top - 8;
  t.waits_for = nullptr;
  t.copies.clear();
  t.group = 0;
  t.done = false;
}

void resume(Thread& t) {
  Machine& m = machine();
  m.running = &t;
  threadIdx = t.index;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&m.scheduler_asan, t.stack.get(), stack_bytes);
#endif
  simt_switch(&m.scheduler, t.sp);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(m.scheduler_asan, nullptr, nullptr);
#endif
}

void run_block() {
  Machine& m = machine();
  m.barrier = {};
  m.any[0] = m.any[1] = false;
  for (Warp& w : m.warps) w.meeting = {};
  if (!m.shared.empty()) std::memset(m.shared.data(), 0xff, m.shared.size() * sizeof(uint4));
  for (unsigned i = 0; i < m.count; ++i) prepare(m.threads[i]);
  const bool backwards = m.blocks++ % 2 == 1;
  const auto at = [&](unsigned i) -> Thread& { return m.threads[backwards ? m.count - 1 - i : i]; };
  for (unsigned left = m.count; left > 0;) {
    bool moved = false;
    // Each warp runs as far ahead of the others as it can.
    for (unsigned first = 0; first < m.count; first += warp_threads)
      for (bool again = true; again;) {
        again = false;
        for (unsigned i = first; i < m.count && i < first + warp_threads; ++i) {
          Thread& t = at(i);
          if (!t.runnable()) continue;
          again = moved = true;
          resume(t);
          if (t.done) --left;
        }
      }
    if (!moved) die("threads wait for others that do not come");
  }
}

/// Arrives, and waits unless it is the last of `count`. True for the last, before the others go on.
bool meet(Meeting& at, unsigned count) {
  Thread& self = *machine().running;
  if (++at.arrived == count) {
    at.arrived = 0;
    ++at.turn;
    return true;
  }
  self.waits_for = &at;
  self.seen = at.turn;
  to_scheduler(false);
  return false;
}

}  // namespace

cudaError_t check(const cudaLaunchConfig_t& config) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > most_threads || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 ||
      config.dynamicSmemBytes > static_cast<std::size_t>(shared_bytes_max))
    return cudaErrorInvalidConfiguration;
  return cudaSuccess;
}

void run(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  static std::mutex turn;  // blocks have the interpreter's globals and the kernels' shared memory for themselves
  const std::lock_guard lock(turn);
  Machine& m = machine();
  const dim3 grid = config.gridDim, block = config.blockDim;
  gridDim = grid;
  blockDim = block;
  m.count = block.x * block.y * block.z;
  m.body = &thread;
  m.shared.assign((config.dynamicSmemBytes + sizeof(uint4) - 1) / sizeof(uint4), {});
  for (unsigned i = 0; i < m.count; ++i) {
    m.threads[i].number = i;
    m.threads[i].index = dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
  }
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        run_block();
      }
}

unsigned lane() { return machine().running->number % warp_threads; }

std::byte* dynamic_shared() { return reinterpret_cast<std::byte*>(machine().shared.data()); }

bool block_barrier(bool any) {
  Machine& m = machine();
  const std::uint64_t turn = m.barrier.turn;
  // The other flag was last read before this barrier, and is written after it.
  if (m.barrier.arrived == 0) m.any[turn % 2] = false;
  m.any[turn % 2] |= any;
  meet(m.barrier, m.count);
  return m.any[turn % 2];
}

const std::uint64_t* warp_exchange(std::uint64_t value) {
  Machine& m = machine();
  const unsigned number = m.running->number, first = number / warp_threads * warp_threads;
  if (first + warp_threads > m.count) die("a warp is not whole");
  Warp& w = m.warps[number / warp_threads];
  std::uint64_t* slots = w.slot[w.meeting.turn % 2];
  slots[number % warp_threads] = value;
  meet(w.meeting, warp_threads);
  return slots;
}

namespace {

/// The running thread's warp, whole.
Warp& own_warp() {
  Machine& m = machine();
  const unsigned number = m.running->number, first = number / warp_threads * warp_threads;
  if (first + warp_threads > m.count) die("a warp is not whole");
  return m.warps[number / warp_threads];
}

/// What all lanes hand in.
const Blob* gather(const Blob& mine) {
  Warp& w = own_warp();
  Blob* slots = w.blob[w.meeting.turn % 2];
  slots[lane()] = mine;
  meet(w.meeting, warp_threads);
  return slots;
}

/// The two bf16 of a word.
void unpack(std::uint32_t pair, double& first, double& second) {
  const std::uint32_t bits[2] = {pair << 16, pair & 0xffff0000u};
  float values[2];
  std::memcpy(values, bits, sizeof values);
  first = static_cast<double>(values[0]);
  second = static_cast<double>(values[1]);
}

/// A tensor core's: of the lanes' rows of 16 and columns of 8.
void multiply(const Blob* lanes, double (&product)[16][8]) {
  double rows[16][16], columns[16][8];  // [row][k], [k][column]
  for (unsigned i = 0; i < 8; ++i)
    for (unsigned high = 0; high < 2; ++high)
      for (unsigned holder = 0; holder < 4; ++holder) {
        const Blob& of = lanes[4 * i + holder];
        const unsigned k = 8 * high + 2 * holder;
        unpack(of.word[2 * high], rows[i][k], rows[i][k + 1]);
        unpack(of.word[2 * high + 1], rows[i + 8][k], rows[i + 8][k + 1]);
        unpack(of.word[4 + high], columns[k][i], columns[k + 1][i]);
      }
  for (unsigned i = 0; i < 16; ++i) {
    double sums[8] = {};
    for (unsigned k = 0; k < 16; ++k)
      for (unsigned j = 0; j < 8; ++j) sums[j] += rows[i][k] * columns[k][j];
    std::copy_n(sums, 8, product[i]);
  }
}

}  // namespace

void load_matrices(std::uint32_t (&r)[4], const void* row, bool transposed) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) die("ldmatrix of a row that is not aligned to 16 bytes");
  Blob mine;
  std::memcpy(mine.word, row, 16);
  const Blob* rows = gather(mine);
  const auto element = [&](unsigned matrix, unsigned y, unsigned x) {
    return rows[8 * matrix + y].word[x / 2] >> x % 2 * 16 & 0xffffu;
  };
  const unsigned g = lane() / 4, t = lane() % 4 * 2;
  for (unsigned i = 0; i < 4; ++i)
    r[i] = transposed ? element(i, t, g) | element(i, t + 1, g) << 16 : element(i, g, t) | element(i, g, t + 1) << 16;
}

/// The last lane multiplies for all of them.
void multiply_tiles(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  Warp& w = own_warp();
  const std::uint64_t turn = w.meeting.turn % 2;
  w.blob[turn][lane()] = {{a[0], a[1], a[2], a[3], b0, b1}};
  auto& product = w.product[turn];
  if (meet(w.meeting, warp_threads)) multiply(w.blob[turn], product);
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned i = 0; i < 4; ++i) c[i] = static_cast<float>(c[i] + product[g + i / 2 * 8][2 * t + i % 2]);
}

void copy_async(void* to, const void* from, unsigned bytes, unsigned valid_bytes) {
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
    die("an asynchronous copy is not aligned");
  Thread& self = *machine().running;
  std::memset(to, 0xff, bytes);  // whoever reads before the copy is there reads NaN
  self.copies.push_back({to, from, bytes, valid_bytes, self.group});
}

void copy_commit() { ++machine().running->group; }

void copy_wait(unsigned groups_left) {
  Thread& self = *machine().running;
  std::size_t done = 0;
  for (; done < self.copies.size() && self.copies[done].group + groups_left < self.group; ++done) {
    const Copy& c = self.copies[done];
    std::memset(c.to, 0, c.bytes);
    if (c.valid_bytes > 0) std::memcpy(c.to, c.from, c.valid_bytes);
  }
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

}  // namespace simt
