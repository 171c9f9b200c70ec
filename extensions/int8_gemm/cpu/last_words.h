// What a process says that the system's limits end.
#pragma once

#include <string>

namespace eggroll {

// From now on a segmentation fault, an abort, an exception that nobody takes and a library's call
// of exit() end the process with this sentence and exit code 2; empty: as ever. For processes whose
// address space is limited: where malloc answers null there, libraries beneath do any of these.
void last_words(const std::string& sentence);

}  // namespace eggroll
