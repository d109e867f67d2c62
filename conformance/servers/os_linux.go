package servers

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// kernelKills can be switched off by a test that looks at the reaper alone.
var kernelKills = true

func dieWithParent(attr *syscall.SysProcAttr) {
	if kernelKills {
		attr.Pdeathsig = syscall.SIGKILL
	}
}

// children lists the direct children of a process.
func children(pid int) []int {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var kids []int
	for _, p := range procs {
		kid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		if _, parent := stat(kid); parent == pid {
			kids = append(kids, kid)
		}
	}
	return kids
}

// stat returns the state of a process ('T' if it is stopped) and its parent; zeros if it is gone.
func stat(pid int) (state byte, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	// The second field is the name in brackets, which may contain anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(fields[1])
	return fields[0][0], parent
}

func standsOrGone(pid int) bool {
	state, _ := stat(pid)
	return state == 'T' || state == 't' || ended(state)
}

func gone(pid int) bool {
	state, _ := stat(pid)
	return ended(state)
}

// ended counts a zombie as ended: the first process of a container may never wait for it.
func ended(state byte) bool { return state == 0 || state == 'Z' || state == 'X' }
