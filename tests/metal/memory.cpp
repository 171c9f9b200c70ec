// Checks every access of a kernel: clang inserts ThreadSanitizer's hooks, which are defined here.
//
// An access must be to the thread's own stack, a constant, or inside an array. Two threads must not
// touch a byte, one of them writing, unless a barrier lies between; nor two threadgroups at all.
// Each byte that may be written keeps the last writer and the readers with the epoch, which is the
// number of barriers before. Lanes of a simdgroup are also ordered by its own barriers, counted
// within an epoch.
//
// Threadgroup memory is one block, as on a GPU. Every array in it has its own view of the whole
// block, the same pages at other addresses, so that a pointer tells of which array it is.

#include "memory.h"

#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>

#include "runtime.h"

extern "C" {
extern char __executable_start, _end;
void* __real_memcpy(void*, const void*, size_t);
void* __real_memmove(void*, const void*, size_t);
void* __real_memset(void*, int, size_t);
}

namespace emu {
namespace {

constexpr size_t ROOM = size_t(1) << 36, PAGE = 1 << 16, PAGES = ROOM / PAGE, LANES = 32;
constexpr unsigned MOST_SIMDGROUPS = 32;

// Readers since the epoch began: a thread, with these bits if there were others.
constexpr uint16_t OTHER_LANES = 1 << 10, OTHER_SIMDGROUPS = 1 << 11, OTHER_GROUPS = 1 << 12;
constexpr uint16_t THREAD = OTHER_LANES - 1;

struct Byte {
  uint32_t written, read;  // epochs
  uint16_t writer, writer_at, reader, reader_at;
};

struct Array {
  Kind kind;
  std::string name;
  const char *begin, *end;
  Byte* bytes;
};

uint32_t clock_now = 1;  // of both kinds of memory, as bytes of one may come after the other's

// Epochs of device and of threadgroup memory.
struct Epochs {
  uint32_t now = 1, launch = 1, group = 1;
  uint16_t lanes[MOST_SIMDGROUPS] = {};  // barriers of each simdgroup since the epoch began

  void next() {
    now = ++clock_now;
    memset(lanes, 0, sizeof lanes);
  }
};

Epochs device_epochs, shared_epochs;
std::deque<Array> taken;
Array* owners[PAGES];
size_t next_page, next_byte;
unsigned thread_now;
const char *stack_now, *library;
size_t stack_bytes, library_bytes;

void* reserved(size_t bytes) {
  void* room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) fail("no address space");
  return room;
}

char* const room = static_cast<char*>(reserved(ROOM));
Byte* const all_bytes = static_cast<Byte*>(reserved(ROOM));

// A view has room for more than any GPU's threadgroup memory, so an array's bounds are left in it.
constexpr size_t VIEW = 1 << 20, VIEWS = 32;

char* views_of_shared() {
  char* all = static_cast<char*>(reserved(VIEW * VIEWS));
  const int file = memfd_create("shared", 0);
  if (file < 0 || ftruncate(file, VIEW)) fail("no threadgroup memory");
  for (size_t i = 0; i < VIEWS; ++i)
    if (mmap(all + i * VIEW, VIEW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
        MAP_FAILED)
      fail("no view of threadgroup memory");
  close(file);
  return all;
}

char* const views = views_of_shared();
Byte shared_block[VIEW];
Array shared_arrays[VIEWS];
size_t shared_count;

[[noreturn]] void report(const Array& array, const void* at, const char* what, int other = -1) {
  char text[400];
  const long byte = static_cast<const char*>(at) - array.begin;
  const unsigned* group = position.group;
  int size = snprintf(text, sizeof text, "thread %u of threadgroup %u, %u, %u %s byte %ld of %s",
                      thread_now, group[0], group[1], group[2], what, byte, array.name.c_str());
  if (other >= 0)
    snprintf(text + size, sizeof text - size_t(size),
             ", which thread %d touched without a barrier between", other);
  fail(text);
}

Epochs& epochs_of(const Array& array) {
  return array.kind == SHARED ? shared_epochs : device_epochs;
}

// Whether this thread's access is not ordered behind one by `other` of this epoch.
bool unordered(const Epochs& epochs, unsigned other, uint16_t at, unsigned thread) {
  if (other / LANES != thread / LANES) return true;
  return other != thread && at == epochs.lanes[thread / LANES];
}

void check_read(const Array& array, const char* at, Byte& byte, const Epochs& epochs,
                unsigned thread) {
  const uint32_t now = epochs.now;
  if (byte.written >= epochs.launch && byte.written < epochs.group && array.kind != SHARED)
    report(array, at, "reads what another threadgroup wrote,");
  if (byte.written == now && unordered(epochs, byte.writer, byte.writer_at, thread))
    report(array, at, "reads what was written,", byte.writer);
  const uint16_t lanes_now = epochs.lanes[thread / LANES];
  if (byte.read != now) {
    const bool here = byte.read >= epochs.launch;
    const bool others = here && (byte.read < epochs.group || byte.reader & OTHER_GROUPS);
    byte.read = now;
    byte.reader = uint16_t(thread | (others ? OTHER_GROUPS : 0));
  } else if ((byte.reader & THREAD) / LANES != thread / LANES) {
    byte.reader |= OTHER_SIMDGROUPS;
  } else if (byte.reader_at != lanes_now) {
    byte.reader = uint16_t(thread | (byte.reader & (OTHER_GROUPS | OTHER_SIMDGROUPS)));
  } else if ((byte.reader & THREAD) != thread) {
    byte.reader |= OTHER_LANES;
  }
  byte.reader_at = lanes_now;
}

void check_write(const Array& array, const char* at, Byte& byte, const Epochs& epochs,
                 unsigned thread) {
  const uint32_t now = epochs.now;
  const uint16_t lanes_now = epochs.lanes[thread / LANES];
  if (byte.written >= epochs.launch && byte.written < epochs.group && array.kind != SHARED)
    report(array, at, "writes what another threadgroup wrote,");
  if (byte.written == now && unordered(epochs, byte.writer, byte.writer_at, thread))
    report(array, at, "writes what was written,", byte.writer);
  if (byte.read >= epochs.launch && array.kind != SHARED &&
      (byte.read < epochs.group || byte.reader & OTHER_GROUPS))
    report(array, at, "writes what another threadgroup read,");
  if (byte.read == now) {
    const unsigned reader = byte.reader & THREAD;
    const bool others = byte.reader & OTHER_LANES && byte.reader_at == lanes_now;
    if (byte.reader & OTHER_SIMDGROUPS || others ||
        unordered(epochs, reader, byte.reader_at, thread))
      report(array, at, "writes what was read,", int(reader));
  }
  byte.written = now;
  byte.writer = uint16_t(thread);
  byte.writer_at = lanes_now;
}

inline bool within(const void* at, const char* begin, size_t bytes) {
  return size_t(static_cast<const char*>(at) - begin) < bytes;
}

inline bool in_arrays(const void* at) {
  return within(at, room, ROOM) || within(at, views, VIEW * VIEWS);
}

const Array* owner_of(const char* at) {
  if (within(at, room, ROOM)) return owners[size_t(at - room) / PAGE];
  const size_t view = size_t(at - views) / VIEW;
  return view < shared_count ? &shared_arrays[view] : nullptr;
}

// Checks an access inside the room for arrays.
void check(const char* at, size_t size, bool write, unsigned thread) {
  const Array* array = owner_of(at);
  if (!array) fail("an access outside every array");
  if (at < array->begin || at + size > array->end) report(*array, at, write ? "writes" : "reads");
  if (array->kind == INPUT) {
    if (write) report(*array, at, "writes");
    return;
  }
  const Epochs& epochs = epochs_of(*array);
  Byte* byte = array->bytes + (at - array->begin);
  for (size_t i = 0; i < size; ++i)
    write ? check_write(*array, at + i, byte[i], epochs, thread)
          : check_read(*array, at + i, byte[i], epochs, thread);
}

inline void access(const void* at, size_t size, bool write) {
  if (within(at, stack_now, stack_bytes)) return;
  if (in_arrays(at)) return check(static_cast<const char*>(at), size, write, thread_now);
  if (write || !(within(at, library, library_bytes) ||
                 within(at, &__executable_start, size_t(&_end - &__executable_start))))
    fail(write ? "a write outside every array" : "a read outside every array");
}

// Of a copy: its other end may be anything that the compiler copies from.
void range(const void* at, size_t size, bool write) {
  if (size && in_arrays(at)) check(static_cast<const char*>(at), size, write, thread_now);
}

// Keeps where a loaded object lies, if `entry` is in it.
int look(dl_phdr_info* object, size_t, void* entry) {
  size_t end = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) & part = object->dlpi_phdr[i];
    if (part.p_type == PT_LOAD) end = std::max<size_t>(end, part.p_vaddr + part.p_memsz);
  }
  const char* begin = reinterpret_cast<const char*>(object->dlpi_addr);
  if (!within(entry, begin, end)) return 0;
  library = begin;
  library_bytes = end;
  return 1;
}

}  // namespace

void kernel_has(const void* entry) { dl_iterate_phdr(look, const_cast<void*>(entry)); }

void* take(Kind kind, const char* name, size_t bytes, int garbage) {
  const size_t pages = bytes / PAGE + 2, first = next_page + 1;  // with pages of nobody around
  if (first + pages > PAGES || (next_byte + bytes) * sizeof(Byte) > ROOM)
    fail("no room for arrays");
  char* begin = room + first * PAGE;
  taken.push_back({kind, name, begin, begin + bytes, all_bytes + next_byte});
  for (size_t i = 0; i + 1 < pages; ++i) owners[first + i] = &taken.back();
  next_page = first + pages;
  if (kind != INPUT) next_byte += bytes;
  return __real_memset(begin, garbage, bytes);
}

void* take_shared(const char* name, size_t begin, size_t bytes) {
  if (shared_count == VIEWS) fail("more arrays of threadgroup memory than there are views");
  char* at = views + shared_count * VIEW + begin;
  shared_arrays[shared_count++] = {SHARED, name, at, at + bytes, shared_block + begin};
  return at;
}

void begin_launch() {
  constexpr size_t MUCH = 1 << 20;  // that a process which waits should not keep
  if (next_page * PAGE > MUCH) madvise(room, next_page * PAGE, MADV_DONTNEED);
  if (next_byte * sizeof(Byte) > MUCH) madvise(all_bytes, next_byte * sizeof(Byte), MADV_DONTNEED);
  // Arrays that are gone leave epochs of the past behind, which count as none.
  memset(owners, 0, next_page * sizeof *owners);
  taken.clear();
  next_page = next_byte = 0;
  device_epochs.next();
  device_epochs.launch = device_epochs.now;
}

void begin_threadgroup(size_t shared_bytes, int garbage) {
  shared_count = 0;
  if (shared_bytes) __real_memset(views, garbage, shared_bytes);
  for (Epochs* epochs : {&device_epochs, &shared_epochs}) {
    epochs->next();
    epochs->group = epochs->now;
  }
}

void order_threads(unsigned flags) {
  if (flags & DEVICE_MEMORY) device_epochs.next();
  if (flags & THREADGROUP_MEMORY) shared_epochs.next();
}

void order_lanes(unsigned simdgroup, unsigned flags) {
  if (flags & DEVICE_MEMORY) ++device_epochs.lanes[simdgroup];
  if (flags & THREADGROUP_MEMORY) ++shared_epochs.lanes[simdgroup];
}

void end_launch() {
  for (const Array& array : taken)
    for (const char* at = array.begin; array.kind == OUTPUT && at < array.end; ++at)
      if (array.bytes[at - array.begin].written < device_epochs.launch) {
        const std::string byte = std::to_string(at - array.begin);
        fail(("nobody writes byte " + byte + " of " + array.name).c_str());
      }
}

void begin_thread(unsigned thread, const char* stack, size_t bytes) {
  thread_now = thread;
  stack_now = stack;
  stack_bytes = bytes;
}

// As two lanes: whoever wrote is not one of them, or not the other.
void read_by_any_lane(const void* from, size_t bytes) {
  if (thread_now % LANES > 1 || !in_arrays(from)) return;
  check(static_cast<const char*>(from), bytes, false, thread_now);
}

}  // namespace emu

using emu::access;
using emu::range;

extern "C" {
void* __wrap_memcpy(void* to, const void* from, size_t size) {
  range(from, size, false);
  range(to, size, true);
  return __real_memcpy(to, from, size);
}
void* __wrap_memmove(void* to, const void* from, size_t size) {
  range(from, size, false);
  range(to, size, true);
  return __real_memmove(to, from, size);
}
void* __wrap_memset(void* to, int value, size_t size) {
  range(to, size, true);
  return __real_memset(to, value, size);
}
// Newer compilers insert calls by these names.
void* __tsan_memcpy(void* to, const void* from, size_t n) { return __wrap_memcpy(to, from, n); }
void* __tsan_memmove(void* to, const void* from, size_t n) { return __wrap_memmove(to, from, n); }
void* __tsan_memset(void* to, int value, size_t n) { return __wrap_memset(to, value, n); }

void __tsan_init() {}
#define HOOKS(SIZE)                                                       \
  void __tsan_read##SIZE(void* at) { access(at, SIZE, false); }           \
  void __tsan_write##SIZE(void* at) { access(at, SIZE, true); }           \
  void __tsan_unaligned_read##SIZE(void* at) { access(at, SIZE, false); } \
  void __tsan_unaligned_write##SIZE(void* at) { access(at, SIZE, true); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
}
