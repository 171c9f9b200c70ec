// Batches of chess positions as lists of active features, built by threads, behind a C ABI.
//
// A pack is a file of records of 32 bytes (record.h) that begin at some offset;
// experiments/nnue/DATA.md describes it. A loader maps it, shuffles its positions anew in each
// epoch and builds whole batches. Their order depends on the seed alone, not on the number of
// threads.
//
// Functions that can fail write a sentence without its full stop to `error` [NNUE_ERROR_BYTES].
#ifndef NNUE_LOADER_H
#define NNUE_LOADER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NNUE_LOADER_ABI 2
#define NNUE_ERROR_BYTES 400

// Blocks of rows that a feature set has, added up; the rows of a set lie in this order. Squares are
// a1 = 0, b1 = 1 ... h8 = 63, with ranks turned over where the board is seen from black. A piece's
// code is 2 * type + (0 own, 1 other), types pawn, knight, bishop, rook, queen, king.
enum {
  NNUE_768 = 1,        // [code 12, square 64]
  NNUE_HALFKP = 2,     // [own king's square 64, code 10, square 64]; kings are no pieces here
  NNUE_P = 4,          // [code 10, square 64]
  NNUE_K = 8,          // [own king's square 64], its value the number of HalfKP's active rows
  NNUE_RELATIVE = 16,  // [code 10, file 15, rank 15] of the piece minus the king's, plus 7
  NNUE_PAIRS = 32,     // every two pawns i < j: j * (j - 1) / 2 + i, pawns [code 2, square - 8 48]
  NNUE_BLOCKS = 63
};

enum { NNUE_ALL, NNUE_TRAIN, NNUE_VALIDATION };  // of a loader: positions of which games

// Rows of position i are index[starts[i]] ... index[starts[i + 1] - 1], ascending.
typedef struct nnue_lists {
  int32_t active;   // of the whole batch: starts[size]
  int32_t* starts;  // [size + 1]
  int32_t* index;   // [active]
  int8_t* counts;   // [active], the rows' values; NULL in sets without K, where all are 1
} nnue_lists;

typedef struct nnue_batch {
  int32_t size;
  nnue_lists white, black;  // the board as each side sees it
  int8_t* stm;              // [size], 1: white moves, 0: black
  int16_t* score;           // [size], centipawns, from the side to move
  int8_t* result;           // [size], -1, 0, 1 from the side to move
} nnue_batch;

typedef struct nnue_settings {
  uint64_t offset, records;  // of the file
  uint64_t seed;
  int64_t epochs;  // -1: without end
  int32_t features, batch, threads, split, shuffle;
} nnue_settings;

typedef struct nnue_loader nnue_loader;

int32_t nnue_loader_abi(void);
// Rows of a feature set; 0 if there is no such set.
int32_t nnue_rows(int32_t features);

// NULL if it fails: the file cannot be mapped, is shorter than it should be, has no position in the
// split, or threads cannot be started.
nnue_loader* nnue_loader_create(const char* path, const nnue_settings* settings, char* error);
// Positions of an epoch.
int64_t nnue_loader_positions(const nnue_loader* loader);
// 1: `batch` is the next one, the caller's to destroy; 0: the last epoch is over; -1: a record is
// bad; -2: a worker died. Further calls say the same again. One call at a time.
int32_t nnue_loader_next(nnue_loader* loader, nnue_batch** batch, char* error);
// Ends the threads and frees what was built and not taken; batches that were taken live on.
void nnue_loader_destroy(nnue_loader* loader);
void nnue_batch_destroy(nnue_batch* batch);

// The first bad one among records [count], its fault in `error`; -1 if all are good.
int64_t nnue_check(const void* records, int64_t count, char* error);

// Where a reader of plain text is.
typedef struct nnue_plain {
  int64_t offset, line, record;  // bytes, lines and records that are read
  int64_t ply;                   // of the last record; a game ends where the ply does not grow
  uint32_t game;                 // of the last record
} nnue_plain;

// Reads Stockfish's plain text from plain->offset on into records [capacity]; returns how many,
// less than `capacity` where the text ends; -1 if a record is bad.
int64_t nnue_plain_read(const char* text, int64_t bytes, nnue_plain* plain, void* records,
                        int64_t capacity, char* error);

// Where a reader of .binpack is.
typedef struct nnue_binpack {
  int64_t offset, chunk_end, record;  // bytes that are read, the end of their chunk, records
  int64_t ply;                        // as in nnue_plain
  uint32_t game;
} nnue_binpack;

// The records that a chain has at most.
#define NNUE_BINPACK_CHAIN 65536

// Reads chains of Stockfish's .binpack from binpack->offset on into records [capacity], which has
// room for a chain; returns how many records, 0 at the end of the data; -1 if something is bad.
int64_t nnue_binpack_read(const uint8_t* data, int64_t bytes, nnue_binpack* binpack, void* records,
                          int64_t capacity, char* error);

#ifdef __cplusplus
}
#endif
#endif
