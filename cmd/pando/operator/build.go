package operator

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando/driver/recipe"
)

// imageBuild builds an image on this machine. It asks no server.
func imageBuild(o *Console) *cobra.Command {
	var file, tag string
	c := o.Flag(&cobra.Command{
		Use: "build [RECIPE]", Short: "build an image from a recipe, without a registry",
		Long: "Build an image from programs, Debian packages and files of this machine. RECIPE is\n" +
			"image.yaml unless given. The same files give the same image, byte by byte. A\n" +
			"Containerfile is a matter for `buildah build` or `docker build`.",
		Example: "  pando image build\n  pando image build web/image.yaml --file web.tar",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			from := "image.yaml"
			if len(args) > 0 {
				from = args[0]
			}
			r, err := recipe.Read(from)
			if err != nil {
				return fmt.Errorf("read the recipe: %w", err)
			}
			if file == "" {
				file = strings.TrimSuffix(from, filepath.Ext(from)) + ".tar"
			}
			if tag == "" {
				tag = "pando/" + imageName(from) + ":latest"
			}
			b, err := recipe.Build(c.Context(), r, file, tag)
			if err != nil {
				return fmt.Errorf("build %s: %w", from, err)
			}
			return o.Show(b, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %d files, %s\nname it in a spec: `image: docker-archive:%s`\n",
					b.File, b.Files, mebibytes(b.Bytes), b.File)
			})
		},
	})
	c.Flags().StringVarP(&file, "file", "f", "", "`FILE` to write; RECIPE with .tar unless given")
	c.Flags().StringVarP(&tag, "tag", "t", "", "`NAME[:TAG]` in the file; pando/FOLDER unless given")
	return c
}

// imageName returns the name of an image after the folder of its recipe.
func imageName(file string) string {
	at, err := filepath.Abs(file)
	if err != nil {
		return "image"
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(filepath.Base(filepath.Dir(at))))
	if name == "" {
		return "image"
	}
	return name
}
