/* Preloaded into a command: makes its n-th file operation below a folder fail, or be its last.

   EGGROLL_FAULT is "N ACTION FOLDER". ACTION is `kill` (before the operation), `after` (behind it),
   `half` (a write of half the bytes, then the end), or a number: the errno of this operation and,
   if it is followed by a +, of all later ones. With N 0 nothing fails; EGGROLL_FAULT_COUNT names a
   file that gets a byte for every operation.

   EGGROLL_CLOCK is "WORD SECONDS": what the clocks do once the process is so old. `still`: they
   stand; `back` and `ahead`: the calendar's jumps by a day, `steady-back`: the steady one, too. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_int operations;
static int fault_at, fault_errno, fault_stays, fault_kill, fault_after, fault_half, count_to = -1;
static char folder[4096];
static size_t folder_length;

__attribute__((constructor)) static void read_orders(void) {
  char action[32] = "";
  const char* orders = getenv("EGGROLL_FAULT");
  if (orders && sscanf(orders, "%d %31s %4095[^\n]", &fault_at, action, folder) == 3) {
    folder_length = strlen(folder);
    fault_kill = !strcmp(action, "kill");
    fault_after = !strcmp(action, "after");
    fault_half = !strcmp(action, "half");
    fault_errno = atoi(action);
    fault_stays = strchr(action, '+') != NULL;
  }
  const char* counted = getenv("EGGROLL_FAULT_COUNT");
  if (counted)
    count_to = (int)syscall(SYS_openat, AT_FDCWD, counted,
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int inside(const char* path) {
  return folder_length && path && !strncmp(path, folder, folder_length);
}

static int handle_inside(int handle) {
  char name[64], path[4096];
  snprintf(name, sizeof name, "/proc/self/fd/%d", handle);
  ssize_t size = readlink(name, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return inside(path);
}

static void end(void) {
  syscall(SYS_kill, getpid(), SIGKILL);
  for (;;) pause();
}

enum { GO_ON, FAIL, LAST };

/* What becomes of an operation inside the folder. */
static int fate(int is_inside) {
  if (!is_inside) return GO_ON;
  if (count_to >= 0) syscall(SYS_write, count_to, ".", 1);
  int now = ++operations;
  if (!fault_at || now < fault_at || (now > fault_at && !fault_stays)) return GO_ON;
  if (fault_kill) end();
  if (fault_after || fault_half) return LAST;
  errno = fault_errno;
  return FAIL;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPERATION(type, name, parameters, arguments, is_inside) \
  type name parameters {                                        \
    int what = fate(is_inside);                                 \
    if (what == FAIL) return -1;                                \
    type result = REAL(name) arguments;                         \
    if (what == LAST) end();                                    \
    return result;                                              \
  }

ssize_t write(int handle, const void* data, size_t size) {
  int what = fate(handle_inside(handle));
  if (what == FAIL) return -1;
  if (what == LAST && fault_half) size /= 2;
  ssize_t result = REAL(write)(handle, data, size);
  if (what == LAST) end();
  return result;
}

OPERATION(ssize_t, pwrite, (int h, const void* d, size_t n, off_t o), (h, d, n, o),
          handle_inside(h))
OPERATION(ssize_t, pwrite64, (int h, const void* d, size_t n, off64_t o), (h, d, n, o),
          handle_inside(h))
OPERATION(int, fsync, (int h), (h), handle_inside(h))
OPERATION(int, fdatasync, (int h), (h), handle_inside(h))
OPERATION(int, ftruncate, (int h, off_t n), (h, n), handle_inside(h))
OPERATION(int, ftruncate64, (int h, off64_t n), (h, n), handle_inside(h))
OPERATION(int, rename, (const char* a, const char* b), (a, b), inside(b))
OPERATION(int, unlink, (const char* a), (a), inside(a))
OPERATION(int, mkdir, (const char* a, mode_t m), (a, m), inside(a))
OPERATION(int, rmdir, (const char* a), (a), inside(a))

#define OPEN(name)                              \
  int name(const char* path, int flags, ...) {  \
    va_list rest;                               \
    va_start(rest, flags);                      \
    mode_t mode = va_arg(rest, mode_t);         \
    va_end(rest);                               \
    int what = fate(inside(path));              \
    if (what == FAIL) return -1;                \
    int result = REAL(name)(path, flags, mode); \
    if (what == LAST) end();                    \
    return result;                              \
  }
OPEN(open)
OPEN(open64)

/* Real time goes on in the kernel; what the process reads of it is changed here. */
static int clock_fault(clockid_t which, struct timespec* now) {
  static char word[16];
  static double after = -1;
  static struct timespec first, stopped[16];
  static atomic_int known;
  if (after < 0) {
    const char* orders = getenv("EGGROLL_CLOCK");
    if (!orders || sscanf(orders, "%15s %lf", word, &after) != 2) word[0] = 0, after = 0;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &first);
  }
  struct timespec steady;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &steady);
  double age =
      (double)(steady.tv_sec - first.tv_sec) + (double)(steady.tv_nsec - first.tv_nsec) / 1e9;
  if (!word[0] || age < after || which < 0 || which >= 16) return 0;
  int calendar = which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE;
  if (!strcmp(word, "still")) {
    if (!(known & (1 << which))) stopped[which] = *now, known |= 1 << which;
    *now = stopped[which];
  } else if (!strcmp(word, "ahead") && calendar) {
    now->tv_sec += 86400;
  } else if (!strcmp(word, "back") && calendar) {
    now->tv_sec -= 86400;
  } else if (!strcmp(word, "steady-back")) {
    now->tv_sec -= now->tv_sec < 86400 ? now->tv_sec / 2 : 86400;
  }
  return 0;
}

int clock_gettime(clockid_t which, struct timespec* now) {
  long result = syscall(SYS_clock_gettime, which, now);
  if (result == 0) clock_fault(which, now);
  return (int)result;
}

time_t time(time_t* to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec precise;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}
