// A classic script, so that it runs before the first paint and the page never flashes.
(() => {
  try {
    const theme = localStorage.getItem("semantic.theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be refused; the system's theme applies.
  }
})();
