package lock

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7 // CLOCK_BOOTTIME of <time.h>: like CLOCK_MONOTONIC, and goes on in suspend

// systemBootTime is the time since the machine started, sleep included.
func systemBootTime() time.Duration {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return wallTime()
	}
	return time.Duration(ts.Nano())
}
