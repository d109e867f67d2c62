package rules_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// TestTheReadmeShowsTestedCode: each piece of Go in the README stands, word for
// word, in the testable examples, and each whole program builds.
func TestTheReadmeShowsTestedCode(t *testing.T) {
	examples := read(t, "../../example_test.go")
	pieces, programs := 0, 0
	for _, block := range goBlock.FindAllStringSubmatch(read(t, "../../README.md"), -1) {
		switch code := block[1]; {
		case strings.HasPrefix(code, "package main\n"):
			programs++
			build(t, code)
		case strings.Contains(examples, code):
			pieces++
		default:
			t.Errorf("not in example_test.go:\n%s", code)
		}
	}
	if pieces < 3 || programs < 1 {
		t.Errorf("the README has %d pieces and %d programs, want at least 3 and 1", pieces, programs)
	}
}

// build builds a program in a module of its own, as its reader would.
func build(t *testing.T, code string) {
	t.Helper()
	dir := program(t, code)
	run(t, dir, "go", "vet", ".")
}

var mdLink = regexp.MustCompile(`\]\(([^)#:]+)\)`)

// TestLinksOfTheDocsLeadSomewhere looks at the links to files.
func TestLinksOfTheDocsLeadSomewhere(t *testing.T) {
	for _, doc := range []string{
		"README.md", "CONTRIBUTING.md", "docs/choosing.md", "docs/configuration.md", "docs/design.md",
		"docs/guarantees.md", "docs/writing-a-driver.md",
	} {
		dir := "../../"
		if below, ok := strings.CutSuffix(doc, doc[strings.LastIndex(doc, "/")+1:]); ok {
			dir += below
		}
		for _, link := range mdLink.FindAllStringSubmatch(read(t, "../../"+doc), -1) {
			if _, err := os.Stat(dir + link[1]); err != nil {
				t.Errorf("%s: %v", doc, err)
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
