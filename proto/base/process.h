// What a program of mkernel does first in main(), daemon and tools alike. Header only.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <initializer_list>

namespace mkernel::base {

/// Opens /dev/null on those of the file descriptors 0, 1 and 2 that are closed. Without it the next file that
/// is opened gets such a number, and what is printed goes into it. Reading from the one that replaces
/// standard input fails, and so does writing to the others, as on a closed descriptor. Makes system calls
/// alone, since nothing of the process is initialised yet.
inline void open_standard_fds() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::syscall(SYS_fcntl, fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is `fd`: all below it are open.
    ::syscall(SYS_openat, AT_FDCWD, "/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

/// In the file of main(): open_standard_fds() before the libraries of the program are initialised, which open
/// files already.
#define MK_OPEN_STANDARD_FDS_FIRST()                                                    \
  [[gnu::section(".preinit_array"), gnu::used]] static void (*mk_open_standard_fds)() = \
      ::mkernel::base::open_standard_fds

/// Ignores the signal, unless this process has a handler for it already (of a profiler that was preloaded).
inline void ignore_signal(int signal) {
  struct sigaction now {};
  if (::sigaction(signal, nullptr, &now) != 0) return;
  const bool handled = (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL;
  if (!handled) std::signal(signal, SIG_IGN);
}

/// For tools. A file that reaches `ulimit -f` is then an error of the write (EFBIG) that the tool reports,
/// not its death. Other signals keep their defaults: a closed pipe or terminal ends a tool.
inline void ignore_file_size_signal() {
  ignore_signal(SIGXFSZ);
}

/// For the daemon. Ignores every signal that would end it by default and that is no request to end:
/// - a write that fails (SIGPIPE, SIGXFSZ) is an error of that write alone,
/// - SIGTTOU would stop the whole process when it logs to a terminal as a background job,
/// - timers, SIGUSR1, SIGUSR2, SIGPWR and real-time signals mean nothing to the daemon.
/// Others keep their effect: SIGTERM, SIGINT and SIGXCPU (a limit of processor time) stop the daemon, SIGHUP
/// reloads, SIGQUIT and SIGABRT end it with a core, as do faults. A parent may have blocked any of these;
/// they are unblocked.
inline void set_daemon_signals() {
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGTTOU, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGPOLL,
#ifdef SIGSTKFLT
                           SIGSTKFLT,
#endif
                           SIGPWR}) {
    ignore_signal(signal);
  }
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) ignore_signal(signal);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace mkernel::base
