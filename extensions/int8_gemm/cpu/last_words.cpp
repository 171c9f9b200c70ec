#include "last_words.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace eggroll {

namespace {

constexpr int kRefused = 2;  // REFUSED of cli.py
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGABRT};

char words[1024];
volatile sig_atomic_t length = 0;  // of the words; 0: none are to be said

// Nothing here takes memory or locks: a signal may have come anywhere.
void say() {
  if (!length) return;
  [[maybe_unused]] ssize_t said = write(STDERR_FILENO, words, static_cast<size_t>(length));
  _exit(kRefused);
}

void on_signal(int) { say(); }

void on_terminate() {
  say();
  std::abort();
}

}  // namespace

void last_words(const std::string& sentence) {
  static const bool registered = std::atexit(say) == 0;
  length = 0;
  size_t size = registered ? std::min(sentence.size(), sizeof words) : 0;
  std::memcpy(words, sentence.data(), size);
  struct sigaction action{};
  action.sa_handler = size ? on_signal : SIG_DFL;
  for (int signal : kSignals) sigaction(signal, &action, nullptr);
  static const std::terminate_handler usual = std::get_terminate();
  std::set_terminate(size ? on_terminate : usual);
  length = static_cast<sig_atomic_t>(size);
}

}  // namespace eggroll
