package image

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/recipe"
)

// imageBuild builds an image on this machine. It asks no server.
func imageBuild(o *console.Console) *cobra.Command {
	var recipeFile, file, tag string
	var force bool
	c := o.Out.Flag(&cobra.Command{
		Use: "build [RECIPE]", Short: "build an image from a recipe, without a registry",
		Long: "Build an image from programs, Debian packages and files of this machine. RECIPE is\n" +
			"image.yaml unless given. The same files give the same image, byte by byte. A\n" +
			"Containerfile is a matter for `buildah build` or `docker build`.",
		Example: "  pando image build\n  pando image build -f web/image.yaml --tar web.tar",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			from := "image.yaml"
			switch {
			case len(args) > 0 && recipeFile != "":
				return cli.Usagef("two recipes: %s and --file %s; name one", args[0], recipeFile)
			case len(args) > 0:
				from = args[0]
			case recipeFile != "":
				from = recipeFile
			}
			r, err := recipe.Read(from)
			if err != nil {
				return cli.OfFile("read the recipe", from, "write one, as the guide \"Bring your own image\" "+
					"shows, or name it: `pando image build RECIPE`", fmt.Errorf("read the recipe: %w", err))
			}
			if file == "" {
				file = strings.TrimSuffix(from, filepath.Ext(from)) + ".tar"
			}
			if err := cli.MayReplace(file, force, recipe.Wrote); err != nil {
				return fmt.Errorf("write the image: %w", err)
			}
			if tag == "" {
				tag = "pando/" + imageName(from) + ":latest"
			}
			b, err := recipe.Build(c.Context(), r, file, tag)
			if err != nil {
				return fmt.Errorf("build %s: %w", from, err)
			}
			return o.Out.Show(b, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %d files, %s\nname it in a spec: `image: docker-archive:%s`\n",
					b.File, b.Files, mebibytes(b.Bytes), b.File)
			})
		},
	})
	c.Flags().StringVarP(&recipeFile, "file", "f", "", "the recipe, in place of RECIPE")
	c.Flags().StringVar(&file, "tar", "", "`FILE` to write; the recipe's name with .tar unless given")
	c.Flags().BoolVar(&force, "force", false, "write over a file that is no image of a recipe")
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
