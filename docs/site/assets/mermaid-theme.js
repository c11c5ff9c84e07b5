// The theme's rules for diagrams name arrow heads by ids that Mermaid now begins with the diagram's.
const initialize = mermaid.initialize;
mermaid.initialize = (config) =>
  initialize({
    ...config,
    themeCSS: `${config.themeCSS}
      marker path, marker polygon { fill: var(--md-mermaid-edge-color) !important; stroke: var(--md-mermaid-edge-color) !important; }
      .loopText, .loopText > tspan { fill: var(--md-mermaid-label-fg-color) !important; }
      .sectionTitle, .sectionTitle > tspan, .noteText, .noteText > tspan { fill: var(--md-mermaid-label-fg-color) !important; }
      .note { fill: var(--md-mermaid-label-bg-color) !important; }`,
  });
