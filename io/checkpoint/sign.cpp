#include "io/checkpoint/sign.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "io/files/os_error.h"
#include "io/files/publish.h"
#include "io/weights/read_ahead.h"

namespace sluice {
namespace {

constexpr const char* signed_name = "SIGNED";
constexpr const char* signature_name = "SIGNED.sig";
constexpr const char* head = "sluice checkpoint signature 1\n";
constexpr std::uint64_t leaf_bytes = 4u << 20;

using Digest = std::array<unsigned char, 32>;
struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using SignatureKey = std::unique_ptr<EVP_PKEY, FreeKey>;
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

Digest sha256(const void* data, std::size_t bytes) {
  Digest digest{};
  EVP_Digest(data, bytes, digest.data(), nullptr, EVP_sha256(), nullptr);
  return digest;
}

Result<SignatureKey> read_key(const std::string& path, bool is_private) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return os_error("can not open the key " + path, errno);
  // Nobody is asked for a passphrase.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  SignatureKey key(is_private ? PEM_read_PrivateKey(file.get(), nullptr, no_passphrase, nullptr)
                              : PEM_read_PUBKEY(file.get(), nullptr, no_passphrase, nullptr));
  if (key == nullptr || EVP_PKEY_id(key.get()) != EVP_PKEY_ED25519)
    return bad_request(path + " is no " + (is_private ? "private" : "public") +
                       " Ed25519 key in PEM; make one with: openssl genpkey -algorithm ed25519" +
                       (is_private ? "" : ", and its public half with: openssl pkey -pubout"));
  return key;
}

Result<std::string> hash_of(const std::string& path, const std::function<Status(std::uint64_t)>& watch) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return os_error("can not open " + path, errno);
  struct stat there {};
  if (fstat(fd, &there) != 0 || !S_ISREG(there.st_mode)) {
    close(fd);
    return bad_request(path + " is no regular file");
  }
  const auto size = static_cast<std::uint64_t>(there.st_size);
  std::vector<Digest> leaves((size + leaf_bytes - 1) / leaf_bytes);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // guards failed, and watch
  Status failed;
  const auto work = [&] {
    std::vector<std::byte> data;
    for (std::size_t i = next++; i < leaves.size(); i = next++) {
      data.resize(std::min(leaf_bytes, size - i * leaf_bytes));
      Status read = read_exactly(fd, path, i * leaf_bytes, data);
      if (read.ok()) leaves[i] = sha256(data.data(), data.size());
      const std::lock_guard lock(mutex);
      if (read.ok()) read = watch(data.size());
      if (failed.ok()) failed = read;
      if (!failed.ok()) return;
    }
  };
  const std::size_t threads =
      std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, std::max<std::size_t>(1, leaves.size()));
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  close(fd);
  if (!failed.ok()) return failed.error();
  const Digest root = sha256(leaves.data(), leaves.size() * sizeof(Digest));
  std::string text;
  for (const unsigned char byte : root) text += fmt::format("{:02x}", byte);
  return text;
}

/// What SIGNED has to say.
Result<std::string> text_of(const Checkpoint& checkpoint, const std::function<Status(std::uint64_t)>& watch) {
  std::vector<std::string> names{manifest_name, master_name};
  for (const StoredFile& file : checkpoint.manifest().files) {
    names.push_back(file.name);
    names.push_back(file.sums_name());
  }
  std::sort(names.begin(), names.end());
  std::string text = head;
  for (const std::string& name : names) {
    SLUICE_ASSIGN(const std::string hash, hash_of(checkpoint.path() + "/" + name, watch));
    text += hash + "  " + name + "\n";
  }
  return text;
}

/// The first file of which two texts differ.
std::string differing(const std::string& is, const std::string& was) {
  std::size_t at = 0;
  while (at < is.size() && at < was.size() && is[at] == was[at]) ++at;
  const std::size_t line = is.rfind('\n', at == 0 ? 0 : at - 1), begin = line == std::string::npos ? 0 : line + 1;
  const std::string text = is.substr(begin, is.find('\n', begin) - begin);
  const std::size_t name = text.rfind(' ');
  return name == std::string::npos ? "one of its files" : text.substr(name + 1);
}

}  // namespace

Status sign_checkpoint(const Checkpoint& checkpoint, const std::string& private_key,
                       const std::function<Status(std::uint64_t)>& watch) {
  SLUICE_ASSIGN(const SignatureKey key, read_key(private_key, true));
  SLUICE_ASSIGN(const std::string text, text_of(checkpoint, watch));
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  std::array<unsigned char, 64> signature{};
  std::size_t bytes = signature.size();
  const bool made = context != nullptr &&
                    EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
                    EVP_DigestSign(context.get(), signature.data(), &bytes,
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size()) == 1;
  if (!made || bytes != signature.size()) return fault(private_key + ": signing failed");
  // The text first: without its signature it says nothing.
  SLUICE_TRY(publish_file(checkpoint.path() + "/" + signed_name, text));
  return publish_file(checkpoint.path() + "/" + signature_name,
                      std::string_view(reinterpret_cast<const char*>(signature.data()), signature.size()));
}

Status verify_signature(const Checkpoint& checkpoint, const std::string& public_key,
                        const std::function<Status(std::uint64_t)>& watch) {
  SLUICE_ASSIGN(const SignatureKey key, read_key(public_key, false));
  const std::string where = checkpoint.path() + "/";
  const Result<std::string> text = read_file(where + signed_name, 64u << 20),
                            signature = read_file(where + signature_name, 4096);
  if (!text.ok() || !signature.ok())
    return bad_request(checkpoint.path() + " is not signed; sign it where it was made: sluice checkpoint sign");
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  const bool is_theirs =
      context != nullptr && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
      EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature->data()), signature->size(),
                       reinterpret_cast<const unsigned char*>(text->data()), text->size()) == 1;
  if (!is_theirs) return bad_request(where + signature_name + " is not a signature by the owner of " + public_key);
  SLUICE_ASSIGN(const std::string now, text_of(checkpoint, watch));
  if (now == *text) return success();
  return bad_request(where + differing(now, *text) + " is not the file that was signed");
}

}  // namespace sluice
