package servers

import (
	"cmp"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// errPortTaken means that another process was faster.
var errPortTaken = errors.New("another process has taken the port")

// saysPortTaken knows the words of each server and of its system.
func saysPortTaken(output string) bool {
	return strings.Contains(strings.ToLower(output), "address already in use")
}

// program is a server program that was found.
type program struct {
	path       string // what a person would call the program
	launcher   string // what runs the path if that is no program: java
	executable string // the file that the processes run, for the reaper
	owner      *owner // the user to run as, nil for this process's
}

// root is where the fixed paths below begin. Tests put an empty directory there.
var root = "/"

// glob returns the existing files of a fixed pattern, the highest version first.
func glob(pattern string) []string {
	files, _ := filepath.Glob(filepath.Join(root, pattern))
	slices.SortFunc(files, func(a, b string) int { return -compareVersions(a, b) })
	return files
}

var number = regexp.MustCompile(`\d+`)

// compareVersions compares the numbers in two names.
func compareVersions(a, b string) int {
	return cmp.Or(slices.CompareFunc(number.FindAllString(a, -1), number.FindAllString(b, -1),
		func(x, y string) int {
			m, _ := strconv.Atoi(x)
			n, _ := strconv.Atoi(y)
			return cmp.Compare(m, n)
		}), cmp.Compare(a, b))
}

// onPath looks for a program as the shell does: a name with a slash is a path. The result does not
// depend on the working directory, and links are not followed: redis-server may be one to
// redis-check-rdb, which does as it is called.
func onPath(name string) (string, bool) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", false
	}
	path, err = filepath.Abs(path)
	return path, err == nil
}

// follow resolves links, and returns the path itself if that cannot be.
func follow(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// missing says what to install. The packages are Debian's.
func missing(p Product, looked, packages string) error {
	return &MissingError{
		Product: p,
		Reason:  "no server program: looked for " + looked,
		Hint: "apt-get install -y --no-install-recommends " + packages +
			" (or scripts/setup-servers), or name a running server in " + variable(p),
	}
}

var dotted = regexp.MustCompile(`\d+(\.\d+)+`)

// askVersion runs a program that prints its version and exits.
func askVersion(path, flag string) string {
	out, err := exec.Command(path, flag).Output()
	if err != nil {
		return ""
	}
	return dotted.FindString(string(out))
}
